"""weights.bin: where each tensor goes is known before the first is read, so tensors stream to their
places.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.bundle import ALIGNMENT, TensorEntry
from bitmtp_edge.layout import TILE_ROWS, pack_scales, pack_weight
from bitmtp_edge.operators import Spec


def lay_out(tensors: Iterable[tuple[str, Spec]]) -> tuple[dict[str, TensorEntry], int]:
    """Places (name, (dtype, shape)) one after another, each on a 256-byte boundary; also the size
    of the file.
    """
    entries: dict[str, TensorEntry] = {}
    end = 0
    for name, (dtype, shape) in tensors:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        entries[name] = TensorEntry(dtype, shape, end, size)
        end = -(-(end + size) // ALIGNMENT) * ALIGNMENT
    return entries, end


class WeightsWriter:
    """Writes tensors, or runs of their leading axis in any order, to the places ``entries`` gives
    them.
    """

    def __init__(self, path: Path, entries: Mapping[str, TensorEntry], size: int) -> None:
        self.entries = entries
        self._missing = {name: entry.bytes for name, entry in entries.items()}
        self._file = path.open("wb")
        self._file.truncate(size)

    def write(self, name: str, values: NDArray[Any], first: int = 0) -> None:
        """Writes ``values`` as the entries ``first, first+1, ...`` of the tensor's leading axis,
        each once.
        """
        entry = self.entries[name]
        assert values.dtype == entry.dtype and values.shape[1:] == entry.shape[1:], name
        assert first + len(values) <= entry.shape[0], name
        data = memoryview(np.ascontiguousarray(values).data).cast("B")
        offset = entry.offset + first * (entry.bytes // entry.shape[0])
        self._missing[name] -= len(data)
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def write_matrix(
        self,
        name: str,
        planes: Mapping[str, NDArray[np.int8]],
        bits: int,
        scales: NDArray[np.float16],
        first_row: int,
    ) -> None:
        """Writes rows of a packed weight: its codes of ``bits`` bits by plane, and their scales.
        ``first_row`` starts a tile, and only the last rows may end within one.
        """
        tile = first_row // TILE_ROWS
        for plane, codes in planes.items():
            self.write(f"{name}.{plane}", pack_weight(codes, bits), tile)
        self.write(f"{name}.scales", pack_scales(scales), tile)

    def __enter__(self) -> WeightsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                unfinished = [name for name, missing in self._missing.items() if missing]
                assert not unfinished, f"not written exactly once: {unfinished}"
                os.fsync(self._file.fileno())
        finally:
            self._file.close()
