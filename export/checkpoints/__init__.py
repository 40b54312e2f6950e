"""Checkpoints: Hugging Face folders and GGUF files."""
