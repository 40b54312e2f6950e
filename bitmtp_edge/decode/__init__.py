"""Decoding: policies over one fixed-shape step."""
