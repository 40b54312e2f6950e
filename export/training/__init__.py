"""Joint training of ternary multi-token models (BitMTP section 3.2).

``recipe`` says what to train; ``corpus`` turns texts into packed rows; ``model`` is the network
with its quantisers (``quantizers``); ``blocks`` lays the masked blocks out and ``attention`` runs
them; ``objective`` is the loss; ``trainer`` the loop; ``student`` and ``saved`` go from a
pretrained checkpoint to a trained one. Needs PyTorch: the extra ``train``.
"""
