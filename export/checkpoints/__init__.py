"""Checkpoints: Hugging Face folders and GGUF files."""

from __future__ import annotations

from pathlib import Path

from bitmtp_edge.errors import UserError

from .base import Checkpoint


def open_checkpoint(source: Path) -> Checkpoint:
    """Opens a GGUF file or a Hugging Face folder. UserError in one line for anything else or
    anything damaged.
    """
    if source.is_dir():
        from .safetensors_folder import FolderCheckpoint

        return FolderCheckpoint(source)
    if not source.exists():
        raise UserError(
            f"{source}: no such file or folder; expected a GGUF file or a Hugging Face model folder"
        )
    if not source.is_file():
        raise UserError(
            f"{source}: neither a file nor a folder; expected a GGUF file or a Hugging Face "
            "model folder"
        )
    from .gguf import GgufCheckpoint

    return GgufCheckpoint(source)
