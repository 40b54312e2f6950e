"""What ``build`` does: engines for TensorRT, one for each replay state, none of which holds a
weight; and the check that the other engines run a bundle."""
