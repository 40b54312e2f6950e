"""The trained ternary checkpoint (docs/checkpoint.md), read and written: a Hugging Face folder
whose linears are ternary codes and whose embedding and head are int8 rows.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.errors import UserError, describe_os_error, missing_extra

from .base import EMBEDDING, HEAD, MASK_EMBEDDINGS, RawConfig, Stack
from .safetensors_folder import SINGLE_FILE, FolderCheckpoint
from .ternary import CodeFormat, Codes, MultiToken, TernaryCheckpoint

QUANT_METHOD = "bitmtp-ternary"
GROUP_SIZES = (0, 64, 128)  # what the operators take
MOST_BLOCK = 64
_SCALE = "_scale"
_CODES_IN_BYTE = 4
_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def pack_ternary(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Packs ``codes`` int8 [N, K] of -1, 0 and 1, K a multiple of 4, into uint8 [N, K/4]: bits 2i
    and 2i+1 of byte j hold the code of column 4j+i, plus 1. ValueError for anything else.
    """
    rows, width = codes.shape
    if width % _CODES_IN_BYTE or (codes.size and np.abs(codes.astype(np.int16)).max() > 1):
        raise ValueError(f"{list(codes.shape)} are no ternary codes in rows of whole bytes")
    lanes = (codes + 1).astype(np.uint8).reshape(rows, width // _CODES_IN_BYTE, _CODES_IN_BYTE)
    return np.bitwise_or.reduce(lanes << _SHIFTS, axis=2)


def unpack_ternary(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The codes int8 [N, K] of ``packed`` uint8 [N, K/4]. A damaged one reads as 2."""
    lanes = (packed[..., None] >> _SHIFTS) & np.uint8(3)
    return lanes.reshape(len(packed), -1).astype(np.int8) - np.int8(1)


class TernaryFolder(FolderCheckpoint, TernaryCheckpoint):
    """A trained ternary checkpoint. UserError for missing, damaged or unsupported files."""

    def __init__(self, folder: Path, raw: RawConfig) -> None:
        stored = raw.block("quantization_config")
        size = stored.get("group_size") if stored else None
        if type(size) is not int or size not in GROUP_SIZES:
            known = ", ".join(map(str, GROUP_SIZES))
            raise UserError(
                f"{raw.where}: quantization_config: group_size is {size!r}, expected one of "
                f"{known} (0: one scale a tensor)"
            )
        self._group_size: int = size
        rest = {key: raw.values[key] for key in raw.values if key != "quantization_config"}
        super().__init__(folder, RawConfig(rest, raw.where))
        name = raw.get("_name_or_path")
        if isinstance(name, str) and name and "/" not in name:
            self.name = name  # the folder's is often just "model"
        try:
            self.multi_token = self._read_multi_token(raw.block("bitmtp"))
        except BaseException:
            self.close()
            raise

    def _read_multi_token(self, block: RawConfig | None) -> MultiToken | None:
        if block is None:
            return None
        size = block.integer("block")
        if not 2 <= size <= MOST_BLOCK:
            raise UserError(f"{block.where}: block is {size}, expected 2 to {MOST_BLOCK} tokens")
        attention = block.get("block_attention")
        if attention not in ("causal", "full"):
            raise UserError(
                f"{block.where}: block_attention is {attention!r}, expected 'causal' or 'full'"
            )
        masks = (self.shape(MASK_EMBEDDINGS) or (1,))[0]
        self._check_stored(MASK_EMBEDDINGS, "F32", (masks, self.config.hidden_size))
        if masks != 1 and masks < size - 1:
            raise UserError(
                f"{self.where}: tensor {MASK_EMBEDDINGS} has {masks} rows, expected 1 or one for "
                f"each of the {size - 1} tokens of a block after its first"
            )
        return MultiToken(size, attention, masks)

    def code_format(self, name: str) -> CodeFormat:
        if name in (EMBEDDING, HEAD):
            return CodeFormat("int8", 0)
        return CodeFormat("ternary", self._group_size)

    def check(self, stack: Stack) -> None:
        if not stack.width:
            super().check(stack)
            return
        for name, rows in stack.parts:
            if self.code_format(name).kind == "int8":
                self._check_stored(name, "I8", (rows, stack.width))
                self._check_stored(name + _SCALE, "F16", (rows,))
                continue
            if stack.width % _CODES_IN_BYTE:
                raise UserError(
                    f"{self.where}: tensor {name} has rows of {stack.width} ternary codes, "
                    f"expected a multiple of {_CODES_IN_BYTE}"
                )
            self._check_stored(name, "U8", (rows, stack.width // _CODES_IN_BYTE))
            self._check_stored(name + _SCALE, "F16", self._scale_shape(rows, stack.width))

    def codes(self, name: str, first: int, last: int) -> Codes:
        rows, stored_width = self._tensors[name].shape
        data = self._bytes(name, first * stored_width, last * stored_width, 1)
        if self.code_format(name).kind == "int8":
            codes = np.frombuffer(data, np.int8).reshape(last - first, stored_width)
            return Codes(codes, self._scales(name, first, last)[:, None])
        codes = unpack_ternary(np.frombuffer(data, np.uint8).reshape(last - first, stored_width))
        if codes.max(initial=0) > 1:
            row = first + int(np.argmax(codes.max(axis=1)))
            raise UserError(
                f"{self.where}: tensor {name} holds the bits 3 in row {row}, which no ternary code "
                "has: the file is damaged or packed otherwise"
            )
        if self._group_size == 0:
            return Codes(codes, np.repeat(self._scales(name, 0, 1)[:, None], last - first, axis=0))
        groups = self._scale_shape(rows, codes.shape[1])[1]
        scales = self._scales(name, first * groups, last * groups)
        return Codes(codes, scales.reshape(last - first, groups))

    def tensor_rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        if name == MASK_EMBEDDINGS:
            return super().tensor_rows(name, first, last)
        codes, scales = self.codes(name, first, last)
        size = self.code_format(name).group_size or codes.shape[1]
        steps = np.repeat(scales.astype(np.float32), size, axis=1)[:, : codes.shape[1]]
        return codes * steps

    def _scale_shape(self, rows: int, width: int) -> tuple[int, ...]:
        return (rows, -(-width // self._group_size)) if self._group_size else (1,)

    def _scales(self, name: str, first: int, last: int) -> NDArray[np.float16]:
        """Elements ``first`` to ``last - 1`` of the flattened scales of the matrix ``name``."""
        data = self._bytes(name + _SCALE, first, last, 2)
        scales = np.frombuffer(data, "<f2").astype(np.float16)
        if not np.isfinite(scales).all():
            raise UserError(
                f"{self.where}: tensor {name + _SCALE} holds values that are not finite (NaN or "
                "infinity)"
            )
        return scales

    def _check_stored(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise UserError(
                f"{self.where}: tensor {name} is missing, which a {QUANT_METHOD} checkpoint of "
                "this config has"
            )
        if (tensor.dtype, tensor.shape) != (dtype, shape):
            raise UserError(
                f"{self.where}: tensor {name} is {tensor.dtype}{list(tensor.shape)}, expected "
                f"{dtype}{list(shape)}"
            )


def write_ternary_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    text_files: Mapping[str, str],
) -> None:
    """Writes a trained ternary checkpoint, which appears under its name only when complete; the
    same arguments give the same bytes.

    config: config.json, with ``quantization_config`` and, for multi-token models, ``bitmtp``.
    tensors: by their names in the file, stored as docs/checkpoint.md says (linears from
    :func:`pack_ternary`). text_files: file name to content: tokenizer.json, tokenizer_config.json,
    generation_config.json. Raises UserError where ``folder`` exists or cannot be written, and for a
    config or tensors that export would refuse.
    """
    try:
        from safetensors.numpy import save
    except ImportError:
        raise missing_extra("safetensors", "train") from None
    if os.path.lexists(folder):
        raise UserError(f"{folder} exists: choose another name, or move it away")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        for name, content in {"config.json": text, **text_files}.items():
            (partial / name).write_bytes(content.encode())
        contiguous = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
        # Its own save_file tells a full disk as no OSError, and hides the file from other users.
        (partial / SINGLE_FILE).write_bytes(save(contiguous))
        _check_written(partial)
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {describe_os_error(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_written(folder: Path) -> None:
    """UserError for what export would refuse by its header."""
    from ..model_tensors import model_tensors
    from . import open_checkpoint

    with open_checkpoint(folder) as checkpoint:
        if not isinstance(checkpoint, TernaryCheckpoint):
            raise UserError(f"{folder}: quantization_config: quant_method must be {QUANT_METHOD!r}")
        model_tensors(checkpoint, checkpoint.config.context)
