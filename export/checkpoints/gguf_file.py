"""The GGUF container: header, metadata and where each tensor lies, read with plain file reads.

The ``gguf`` package's own reader maps the whole file, so that resident memory grows with the model,
and trusts the sizes that a damaged header states; here every size is checked against the file
first.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bitmtp_edge.errors import UserError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MOST_AXES = 4
MOST_ITEMS = 1 << 22  # of an array: several times the largest vocabulary or list of merges
MOST_NAME_BYTES = 1 << 16  # the format's own limit for keys; tensor names are shorter
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """shape: row-major. type_id: ggml tensor type. offset: bytes from the start of the file."""

    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """metadata: the file's keys with plain Python values (str, int, float, bool, list)."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


class _Reader:
    """Reads values in order; anything past the end of the file is a UserError."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.left = os.fstat(file.fileno()).st_size

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise UserError(
                f"{self.path}: truncated or damaged GGUF header; download the file again"
            )
        self.left -= count
        return self.file.read(count)

    def scalar(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self) -> str:
        # A damaged description must not keep a sound model from being read.
        return self.take(self.scalar("<Q")).decode("utf-8", "replace")

    def name(self) -> str:
        """A key or the name of a tensor: a longer text is what follows a damaged length."""
        text = self.text()
        if len(text) >= MOST_NAME_BYTES or not text.isprintable():
            raise UserError(f"{self.path}: a damaged name in the header; download the file again")
        return text

    def value(self, kind: int) -> Any:
        if kind == _FLOAT32:
            # The decimal it was written from: 1e-05, where its widening is 9.999999747e-06.
            return float(str(np.float32(self.scalar("<f"))))
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise UserError(
                f"{self.path}: unknown GGUF value type {kind}; the file is damaged or newer than "
                "this SDK"
            )
        item, count = self.scalar("<I"), self.scalar("<Q")
        if item in _SCALARS and count <= MOST_ITEMS:
            layout = _SCALARS[item]
            data = self.take(count * struct.calcsize(layout))
            return [value for (value,) in struct.iter_unpack(layout, data)]
        if item != _STRING or count > MOST_ITEMS:
            raise UserError(
                f"{self.path}: damaged GGUF array (type {item}, {count} items); download the "
                "file again"
            )
        return [self.text() for _ in range(count)]


def read_header(file: BinaryIO, path: Path) -> GgufHeader:
    """Reads the header of the GGUF ``file``. UserError for anything but a sound little-endian GGUF
    of version 2 or 3.
    """
    reader = _Reader(file, path)
    if reader.left < 24 or reader.take(4) != MAGIC:
        raise UserError(f"{path}: not a GGUF file (it does not start with 'GGUF')")
    version = reader.scalar("<I")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise UserError(
            f"{path}: GGUF version {version} is not supported (little-endian {known} are)"
        )
    tensor_count, value_count = reader.scalar("<Q"), reader.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = reader.name()
        metadata[key] = reader.value(reader.scalar("<I"))
    tensors: dict[str, TensorInfo] = {}
    for _ in range(tensor_count):
        name, axes = reader.name(), reader.scalar("<I")
        if not 1 <= axes <= MOST_AXES:
            raise UserError(
                f"{path}: tensor {name} has {axes} axes (expected 1 to {MOST_AXES}); the file is "
                "damaged"
            )
        shape = tuple(reader.scalar("<Q") for _ in range(axes))[::-1]
        tensors[name] = TensorInfo(shape, reader.scalar("<I"), reader.scalar("<Q"))
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise UserError(f"{path}: general.alignment is {alignment!r}, expected a positive integer")
    start = -(-file.tell() // alignment) * alignment
    return GgufHeader(
        metadata,
        {
            name: TensorInfo(info.shape, info.type_id, start + info.offset)
            for name, info in tensors.items()
        },
    )
