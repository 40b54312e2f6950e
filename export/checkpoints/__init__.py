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
        return _open_folder(source)
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


def _open_folder(folder: Path) -> Checkpoint:
    from .safetensors_folder import FolderCheckpoint, read_config
    from .ternary_folder import QUANT_METHOD, TernaryFolder

    raw = read_config(folder)
    stored = raw.block("quantization_config")
    if stored is not None and stored.get("quant_method") == QUANT_METHOD:
        return TernaryFolder(folder, raw)
    return FolderCheckpoint(folder, raw)
