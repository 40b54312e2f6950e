"""Engines: what runs the fixed-shape step, one module each."""
