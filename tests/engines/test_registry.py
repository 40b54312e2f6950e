"""Which engine a name opens, and what is said where none does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.engines import registry
from bitmtp_edge.engines.onnxruntime import OnnxRuntimeEngine
from bitmtp_edge.engines.registry import AUTO, ENGINES, EngineOptions, open_engine
from bitmtp_edge.errors import UserError


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("auto", "cpu"),
        ("cpu", "cpu"),
        ("onnxruntime", "onnxruntime"),
        pytest.param("auto", "cuda", marks=pytest.mark.gpu),
        pytest.param("cuda", "cuda", marks=pytest.mark.gpu),
    ],
)
def test_names(tiny_bundle: Bundle, name: str, opened: str) -> None:
    with open_engine(name, tiny_bundle, EngineOptions(threads=2)) as engine:
        assert engine.name == opened
        assert engine.threads == (2 if opened == "cpu" else None)
        assert engine.segment == tiny_bundle.replay.segments[0]


def test_auto_is_never_the_oracle() -> None:
    assert "onnxruntime" not in AUTO


@pytest.mark.parametrize("devices", [0, 1])
def test_auto_says_why_a_gpu_is_not_used(
    tiny_bundle: Bundle, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "driver_devices", lambda: devices)
    monkeypatch.setitem(
        ENGINES, "cuda", replace(ENGINES["cuda"], unavailable=lambda: "not built: build it")
    )
    told: list[str] = []
    with open_engine("auto", tiny_bundle, notice=told.append) as engine:
        assert engine.name == "cpu"
    assert told == ["engine cuda is not used: not built: build it"] * devices


def test_an_unknown_engine(tiny_bundle: Bundle) -> None:
    told = r"no engine 'npu': choose auto, tensorrt, cuda, cpu, onnxruntime"
    with pytest.raises(UserError, match=told):
        open_engine("npu", tiny_bundle)


def test_an_engine_that_does_not_work_here(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "cpu", replace(ENGINES["cpu"], unavailable=lambda: "no library"))
    with pytest.raises(UserError, match="engine cpu does not work here: no library"):
        open_engine("cpu", tiny_bundle)
    told = r"no engine works here \(tensorrt: no .*; cuda: no .*; cpu: no library\)"
    with pytest.raises(UserError, match=told):
        open_engine("auto", tiny_bundle)


def test_an_unknown_provider(tiny_bundle: Bundle) -> None:
    with pytest.raises(UserError, match=r"has no provider 'NoneProvider'; it has .*CPUExecution"):
        OnnxRuntimeEngine(tiny_bundle, provider="NoneProvider")
