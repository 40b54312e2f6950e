"""libbitmtp_tensorrt_conformance.so through ctypes: plugins in TensorRT's order of calls.

The mirror of plugins/tensorrt/conformance/conformance.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_void_p

from bitmtp_edge.operators import Spec

from .signatures import Field

DATA_TYPES = {"float32": 0, "float16": 1, "int32": 3}
FIELD_TYPES = {float: 1, int: 5, str: 6}


class _Tensor(ctypes.Structure):
    _fields_ = (("type", c_int32), ("rank", c_int32), ("extents", c_int64 * 8))

    @classmethod
    def of(cls, spec: Spec) -> _Tensor:
        dtype, shape = spec
        return cls(DATA_TYPES[dtype], len(shape), (c_int64 * 8)(*shape))

    def spec(self) -> Spec:
        dtype = {code: name for name, code in DATA_TYPES.items()}[self.type]
        return dtype, tuple(self.extents[: self.rank])


class _Field(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("data", c_void_p), ("type", c_int32), ("length", c_int32))


_FUNCTIONS = {
    "conformance_open": (c_void_p, (c_char_p, c_char_p, c_int32)),
    "conformance_close": (None, (c_void_p,)),
    "conformance_creators": (c_int32, (c_void_p,)),
    "conformance_creator_name": (c_char_p, (c_void_p, c_int32)),
    "conformance_creator_fields": (c_char_p, (c_void_p, c_int32)),
    "conformance_log": (c_char_p, (c_void_p,)),
    "conformance_fault": (c_char_p, (c_void_p,)),
    "conformance_take_through": (
        c_void_p,
        (
            c_void_p,
            c_char_p,
            POINTER(_Field),
            c_int32,
            POINTER(_Tensor),
            c_int32,
            POINTER(_Tensor),
            c_int32,
            POINTER(c_int64),
        ),
    ),
    "conformance_enqueue": (
        c_int32,
        (c_void_p, POINTER(c_void_p), POINTER(c_void_p), c_void_p, c_void_p),
    ),
    "conformance_release": (None, (c_void_p,)),
}


class Refused(Exception):
    """A step of TensorRT's order went wrong. log: what the library had to say."""

    def __init__(self, step: str, log: str) -> None:
        super().__init__(f"{step}: {log.strip()}")
        self.step, self.log = step, log


class Session:
    """The plugin library at ``plugins``, loaded by the stand-in at ``conformance``."""

    def __init__(self, conformance: str, plugins: str) -> None:
        self.conformance = conformance
        self._library = ctypes.CDLL(conformance)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        error = ctypes.create_string_buffer(512)
        self._session = self._library.conformance_open(plugins.encode(), error, len(error))
        if not self._session:
            raise Refused("conformance_open", error.value.decode())

    def close(self) -> None:
        self._library.conformance_close(self._session)

    def creators(self) -> dict[str, list[tuple[str, int]]]:
        """Name and PluginFieldType of every field, by creator."""
        found = {}
        for i in range(self._library.conformance_creators(self._session)):
            name = self._library.conformance_creator_name(self._session, i).decode()
            fields = self._library.conformance_creator_fields(self._session, i).decode()
            pairs = [field.partition(":") for field in fields.split(",")]
            found[name] = [(field, int(code)) for field, _, code in pairs]
        return found

    def log(self) -> str:
        """What the library logged since the last call."""
        return self._library.conformance_log(self._session).decode()

    def take_through(
        self, op: str, fields: Sequence[Field], inputs: Sequence[Spec], outputs: int
    ) -> Plugin:
        """A plugin in an execution context. Refused where a step goes wrong."""
        given, kept = _packed(fields)
        made = (_Tensor * outputs)()
        size = c_int64()
        self.log()
        handle = self._library.conformance_take_through(
            self._session,
            op.encode(),
            given,
            len(given),
            (_Tensor * len(inputs))(*map(_Tensor.of, inputs)),
            len(inputs),
            made,
            outputs,
            byref(size),
        )
        del kept
        if not handle:
            raise Refused(self._library.conformance_fault(self._session).decode(), self.log())
        return Plugin(self._library, handle, [tensor.spec() for tensor in made], size.value)


class Plugin:
    """A plugin that may be enqueued. outputs: dtypes and shapes that it told TensorRT.
    workspace_bytes: what it asked for."""

    def __init__(
        self, library: ctypes.CDLL, handle: int, outputs: list[Spec], workspace_bytes: int
    ) -> None:
        self.outputs, self.workspace_bytes = outputs, workspace_bytes
        self._library, self._handle = library, handle

    def enqueue(
        self, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int
    ) -> int:
        """Addresses in the device's memory; 0 where it went well."""
        return self._library.conformance_enqueue(
            self._handle,
            (c_void_p * len(inputs))(*inputs),
            (c_void_p * len(outputs))(*outputs),
            workspace,
            stream,
        )

    def release(self) -> None:
        self._library.conformance_release(self._handle)


def _packed(fields: Sequence[Field]) -> tuple[ctypes.Array[_Field], list[object]]:
    """The fields, and what keeps their data."""
    kept: list[object] = []
    packed = []
    for name, value in fields:
        data: ctypes.Array[ctypes.c_char] | c_int32 | ctypes.c_float
        if isinstance(value, str):
            data, length = ctypes.create_string_buffer(value.encode()), len(value.encode())
        else:
            data, length = (c_int32 if isinstance(value, int) else ctypes.c_float)(value), 1
        kept.append(data)
        address = ctypes.cast(byref(data), c_void_p)
        packed.append(_Field(name.encode(), address, FIELD_TYPES[type(value)], length))
    return (_Field * len(packed))(*packed), kept
