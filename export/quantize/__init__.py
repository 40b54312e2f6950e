"""Quantisation: float weights to the integer codes of the bundle."""
