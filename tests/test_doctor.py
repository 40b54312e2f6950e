"""doctor: what works here, and the fix for what does not."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import replace

import pytest

from bitmtp_edge import doctor
from bitmtp_edge.doctor import Finding, examine
from bitmtp_edge.engines import cpu_library
from bitmtp_edge.engines.registry import ENGINES


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
    assert {"engine cuda", "engine tensorrt", "energy"} <= found.keys()
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
