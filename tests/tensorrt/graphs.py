"""CUDA graphs by the plugin library's own C ABI: plugins/include/bitmtp/tensorrt.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p


class Graphs:
    """``library``: path of libbitmtp_tensorrt.so."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        for name, result, arguments in (
            ("bitmtp_graph_begin", c_int32, (c_void_p,)),
            ("bitmtp_graph_end", c_int32, (c_void_p, POINTER(c_void_p))),
            ("bitmtp_graph_launch", c_int32, (c_void_p, c_void_p)),
            ("bitmtp_graph_nodes", c_int64, (c_void_p,)),
            ("bitmtp_graph_destroy", None, (c_void_p,)),
        ):
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def replay(self, enqueue: Callable[[], None], stream: int, times: int = 1) -> int:
        """Captures what ``enqueue`` puts on the stream, launches that, and gives its nodes. The
        graph must outlive its launches: the caller waits, then calls :meth:`destroy`."""
        assert self._library.bitmtp_graph_begin(stream) == 0
        graph = c_void_p()
        try:
            enqueue()
        except BaseException:
            self._library.bitmtp_graph_end(stream, None)
            raise
        assert self._library.bitmtp_graph_end(stream, byref(graph)) == 0
        nodes = self._library.bitmtp_graph_nodes(graph)
        for _ in range(times):
            assert self._library.bitmtp_graph_launch(graph, stream) == 0
        self._last = graph
        return int(nodes)

    def destroy(self) -> None:
        """Of the last replay, whose work has ended."""
        self._library.bitmtp_graph_destroy(self._last)
