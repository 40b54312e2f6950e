"""doctor: what works here, and the fix for what does not."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitmtp_edge import doctor
from bitmtp_edge.doctor import examine
from bitmtp_edge.engines import cpu_library, cuda_device
from bitmtp_edge.engines.registry import ENGINES
from bitmtp_edge.findings import Finding

from .boards import JETPACK6, write_board


def by_subject(findings: Iterable[Finding]) -> dict[str, Finding]:
    found = list(findings)
    named = {finding.subject: finding for finding in found}
    assert len(named) == len(found)
    for finding in found:
        assert finding.detail and "\n" not in finding.detail
    return named


def test_this_machine() -> None:
    found = by_subject(examine())
    assert platform.python_version() in found["python"].detail
    for subject in ("engine cpu", "engine onnxruntime", "cpu kernels", "package onnx"):
        assert found[subject].status == "ok", found[subject]
    assert found["cpu kernels"].detail.startswith(f"{cpu_library.isas()[0]} in use, ")
    assert "CPUExecutionProvider" in found["onnxruntime providers"].detail
    assert found["--provider"].status == "untested"
    assert {"engine cuda", "engine tensorrt", "power"} <= found.keys()
    assert all(found[name].status == "missing" for name in ("engine cuda", "engine tensorrt"))


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "cpu", replace(ENGINES["cpu"], unavailable=lambda: "not there"))
    found = by_subject(examine())
    assert found["engine cpu"] == Finding("engine cpu", "missing", "not there")
    assert "cpu kernels" not in found


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    runtime = ENGINES["onnxruntime"]
    monkeypatch.setitem(ENGINES, "onnxruntime", replace(runtime, unavailable=lambda: "not there"))
    found = by_subject(examine())
    assert "onnxruntime providers" not in found
    packages = [finding for name, finding in found.items() if name.startswith("package ")]
    assert len(packages) == len(doctor._OPTIONAL)
    for finding in packages:
        assert finding.status == "missing"
        assert finding.detail.endswith("pip install '.[export]'")


def test_the_gpu_package_of_onnxruntime_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "onnxruntime":
            raise importlib.metadata.PackageNotFoundError(package)
        return "9.9"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert by_subject(examine())["package onnxruntime"].status == "ok"


def test_arm_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert by_subject(examine())["cpu kernels on Arm"].status == "untested"


@pytest.mark.parametrize(
    ("build", "devices", "status", "detail"),
    [
        ("2.13.0+cpu", 0, "ok", "torch 2.13.0+cpu, no CUDA device: enough for a rehearsal"),
        ("2.13.0", 1, "ok", "torch 2.13.0, 1 CUDA device"),
        ("2.13.0", 8, "ok", "torch 2.13.0, 8 CUDA devices, of which 7 stay idle"),
        ("2.13.0+cpu", 1, "missing", "torch 2.13.0+cpu cannot use the CUDA device here"),
    ],
)
def test_training(
    build: str, devices: int, status: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: build)
    monkeypatch.setattr(doctor, "driver_devices", lambda: devices)
    found = by_subject(examine())["training"]
    assert found.status == status and found.detail.startswith(detail)


def test_training_lacks_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package in ("torch", "matplotlib"):
            raise importlib.metadata.PackageNotFoundError(package)
        return "9.9"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = by_subject(examine())["training"]
    assert found.status == "missing"
    assert found.detail == "needs torch, matplotlib; in a checkout: pip install '.[train]'"


@pytest.mark.parametrize(("capability", "status"), [((9, 0), "ok"), ((8, 7), "untested")])
def test_a_gpu_that_the_kernels_never_ran_on_is_said_to_be_untested(
    capability: tuple[int, int], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(name="a GPU", capability=capability)
    monkeypatch.setattr(cuda_device, "CudaDevice", lambda: device)
    assert doctor._cuda_device().status == status


def test_an_engine_that_nobody_has_run_is_said_to_be_untested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = replace(ENGINES["tensorrt"], unavailable=lambda: None)
    monkeypatch.setitem(ENGINES, "tensorrt", kind)
    found = by_subject(examine())["engine tensorrt"]
    assert found.status == "untested" and "never on a Jetson" in found.detail


def test_on_a_board_the_extra_jetson_brings_onnx(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def version(package: str) -> str:
        if package == "onnx":
            raise importlib.metadata.PackageNotFoundError(package)
        return "9.9"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = by_subject(examine(write_board(tmp_path, JETPACK6)))["package onnx"]
    assert found.status == "missing" and found.detail.startswith("for build for TensorRT, ")
    assert found.detail.endswith("pip install '.[jetson]'")


def test_a_board_is_looked_at(tmp_path: Path) -> None:
    found = by_subject(examine(write_board(tmp_path, JETPACK6)))
    assert found["board"].status == "untested"
    assert found["L4T"] == Finding("L4T", "ok", "36.4.3 (JetPack 6.2)")
    assert {"groups", "power mode", "power sensors", "jtop", "memory", "swap"} <= found.keys()


def test_power_is_read(tmp_path: Path) -> None:
    assert by_subject(examine(tmp_path))["power"].status == "missing"
    rail = {"name": "ina3221", "in1_label": "VDD_IN", "in1_input": "5024", "curr1_input": "6020"}
    write_board(tmp_path, {f"sys/class/hwmon/hwmon1/{name}": text for name, text in rail.items()})
    found = by_subject(examine(tmp_path))["power"]
    assert found.status == "ok" and found.detail.startswith("30.2 W (VDD_IN), by ina3221")


def test_no_board_is_looked_at_where_there_is_none(tmp_path: Path) -> None:
    found = by_subject(examine(tmp_path))
    assert "board" not in found and "TensorRT" in found and "pycuda" in found
