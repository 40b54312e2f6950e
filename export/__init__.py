"""Export: from a checkpoint to a bundle, on a workstation."""
