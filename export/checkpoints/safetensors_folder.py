"""Hugging Face folders: config.json and safetensors, one file or shards, read in row blocks."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.errors import UserError

from .base import Checkpoint, RawConfig
from .families import find_family

if TYPE_CHECKING:
    from .text_assets import TextAssets

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # the format's own limit
_FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
_ITEM_BYTES = {**_FLOATS, "U8": 1, "I8": 1}


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor lies; ``offset`` is in bytes from the start of ``file``."""

    file: BinaryIO
    dtype: str
    shape: tuple[int, ...]
    offset: int


class FolderCheckpoint(Checkpoint):
    """A Hugging Face model folder. UserError for missing, damaged or unsupported files."""

    def __init__(self, folder: Path, raw: RawConfig) -> None:
        self.where = str(folder)
        self.name = folder.resolve().name
        self._folder = folder
        self._files: list[BinaryIO] = []
        self._tensors: dict[str, _Tensor] = {}
        architectures = raw.get("architectures")
        architecture = (
            architectures[0] if isinstance(architectures, list) and architectures else None
        )
        self.family = find_family(str(raw.get("model_type")), raw.where, architecture)
        self.config = self.family.read(raw)
        try:
            self._open_tensors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()

    @cached_property
    def text(self) -> TextAssets:
        from .hf_tokenizer import text_assets

        return text_assets(self._folder)

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._tensors.get(name)
        return tensor.shape if tensor else None

    def tensor_rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        width = self._tensors[name].shape[1]
        return self._floats(name, first * width, last * width).reshape(last - first, width)

    def vector(self, name: str) -> NDArray[np.float32]:
        return self._floats(name, 0, self._tensors[name].shape[0])

    def _floats(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Elements ``first`` to ``last - 1`` of the flattened tensor."""
        dtype = self._tensors[name].dtype
        if dtype not in _FLOATS:
            known = ", ".join(_FLOATS)
            raise UserError(
                f"{self.where}: tensor {name} has dtype {dtype}; only {known} can be read"
            )
        data = self._bytes(name, first, last, _FLOATS[dtype])
        if dtype == "BF16":
            # numpy has no bfloat16: it is the upper half of a float32.
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)

    def _bytes(self, name: str, first: int, last: int, size: int) -> bytes:
        """Items ``first`` to ``last - 1`` of the flattened tensor, of ``size`` bytes each."""
        tensor = self._tensors[name]
        tensor.file.seek(tensor.offset + first * size)
        data = tensor.file.read((last - first) * size)
        if len(data) != (last - first) * size:
            raise UserError(f"{self.where}: could not read tensor {name}: its file became shorter")
        return data

    def _open_tensors(self) -> None:
        if (self._folder / INDEX_FILE).is_file():
            index_path = self._folder / INDEX_FILE
            mapping = _read_object(index_path, "").get("weight_map")
            if not isinstance(mapping, dict) or not all(
                isinstance(name, str) for name in mapping.values()
            ):
                raise UserError(f"{index_path}: weight_map must give a file name for every tensor")
            for shard in sorted(set(mapping.values())):
                if shard in ("", ".", "..") or "/" in shard or "\\" in shard or "\0" in shard:
                    raise UserError(
                        f"{index_path}: shard name {shard!r} is not the name of a file in this "
                        "folder"
                    )
                found = self._open_file(self._folder / shard)
                wanted = {name for name, file in mapping.items() if file == shard}
                lost = sorted(wanted - found.keys())
                if lost:
                    raise UserError(
                        f"{self._folder / shard}: tensor {lost[0]} is missing, which "
                        f"{INDEX_FILE} places there"
                    )
                self._tensors.update({name: found[name] for name in wanted})
            return
        if not (self._folder / SINGLE_FILE).is_file():
            raise UserError(
                f"{self._folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is here; only "
                "safetensors weights can be read"
            )
        self._tensors = self._open_file(self._folder / SINGLE_FILE)

    def _open_file(self, path: Path) -> dict[str, _Tensor]:
        """Tensors of one safetensors file, every extent checked against the file's size."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise UserError(
                f"{path}: this shard is missing; download the whole checkpoint"
            ) from None
        self._files.append(file)
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise UserError(
                f"{path}: truncated or not a safetensors file (its header of {length} bytes does "
                "not fit)"
            )
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise UserError(
                f"{path}: not a safetensors file, or damaged (its header is not JSON)"
            ) from None
        if not isinstance(header, dict):
            raise UserError(
                f"{path}: not a safetensors file, or damaged (its header is not an object)"
            )
        start = 8 + length
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {
            name: _tensor(file, entry, start, size, f"{path}: tensor {name}")
            for name, entry in entries.items()
        }


def _tensor(file: BinaryIO, entry: Any, start: int, size: int, where: str) -> _Tensor:
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{where}: damaged header entry; expected dtype, shape and data_offsets"
        ) from None
    if (
        not all(type(number) is int and number >= 0 for number in (*shape, first, last))
        or last < first
    ):
        raise UserError(
            f"{where}: damaged header entry; sizes and offsets must be whole numbers in order"
        )
    if start + last > size:
        raise UserError(
            f"{where}: ends at byte {start + last}, the file has {size}: truncated; download it "
            "again"
        )
    item = _ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if item is not None and math.prod(shape) * item != last - first:
        raise UserError(
            f"{where}: {last - first} bytes do not hold {dtype}{list(shape)}; the file is damaged"
        )
    return _Tensor(file, str(dtype), shape, start + first)


def read_config(folder: Path) -> RawConfig:
    """config.json of a model folder. UserError where there is none, or it is no JSON object."""
    path = folder / "config.json"
    return RawConfig(_read_object(path, "not a Hugging Face model folder"), str(path))


def _read_object(path: Path, otherwise: str) -> dict[str, Any]:
    """The JSON object in ``path``; where there is no such file, UserError with ``otherwise``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent}: {otherwise}: it has no {path.name}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path}: not valid JSON; download it again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object")
    return value
