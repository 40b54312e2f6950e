"""bitmtp-edge: low-bit language models with multi-token decoding on edge devices."""

__version__ = "0.1.0"
