"""Which engine a name opens, and what is said where none does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines.onnxruntime import OnnxRuntimeEngine
from bitmtp_edge.engines.registry import AUTO, ENGINES, EngineOptions, open_engine
from bitmtp_edge.errors import UserError


@pytest.mark.parametrize(("name", "opened"), [("auto", "cpu"), *((n, n) for n in ENGINES)])
def test_names(tiny_bundle: Bundle, name: str, opened: str) -> None:
    with open_engine(name, tiny_bundle, EngineOptions(threads=2)) as engine:
        assert engine.name == opened
        assert engine.threads == (2 if opened == "cpu" else None)
        assert engine.segment == tiny_bundle.replay.segments[0]


def test_auto_is_never_the_oracle() -> None:
    assert "onnxruntime" not in AUTO


def test_an_unknown_engine(tiny_bundle: Bundle) -> None:
    with pytest.raises(UserError, match=r"no engine 'cuda': choose auto, cpu, onnxruntime"):
        open_engine("cuda", tiny_bundle)


def test_an_engine_that_does_not_work_here(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "cpu", replace(ENGINES["cpu"], unavailable=lambda: "no library"))
    with pytest.raises(UserError, match="engine cpu does not work here: no library"):
        open_engine("cpu", tiny_bundle)
    with pytest.raises(UserError, match=r"no engine works here \(cpu: no library\)"):
        open_engine("auto", tiny_bundle)


def test_an_unknown_provider(tiny_bundle: Bundle) -> None:
    with pytest.raises(UserError, match=r"has no provider 'NoneProvider'; it has .*CPUExecution"):
        OnnxRuntimeEngine(tiny_bundle, provider="NoneProvider")
