"""plugins/gpu.cmake: which libraries for GPUs a build makes, on machines that are made up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

GPU_CMAKE = Path(__file__).parents[2] / "plugins" / "gpu.cmake"
CMAKE = shutil.which("cmake")

pytestmark = pytest.mark.skipif(CMAKE is None, reason="no cmake")

RELEASE, NVCC = "etc/nv_tegra_release", "usr/local/cuda/bin/nvcc"
HEADERS = "usr/include/aarch64-linux-gnu/NvInferRuntime.h"
Choose = Callable[..., tuple[dict[str, str], list[str]]]


@pytest.fixture
def choose(tmp_path: Path) -> Choose:
    """What is built where the machine has ``files`` and CMake is given ``settings``, and what CMake
    says of it."""

    def choose(*files: str, **settings: str) -> tuple[dict[str, str], list[str]]:
        root = tmp_path / "root"
        for file in files:
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        script = tmp_path / "choose.cmake"
        chosen = ("BITMTP_CUDA", "BITMTP_TENSORRT", "BITMTP_TENSORRT_INCLUDE")
        shown = (*chosen, "CMAKE_CUDA_COMPILER", "CMAKE_CUDA_ARCHITECTURES")
        script.write_text(
            f"include({GPU_CMAKE})\n"
            + "".join(f'message("{name}=${{{name}}}")\n' for name in shown)
        )
        given = {"BITMTP_CUDA": "AUTO", "BITMTP_TENSORRT": "AUTO", **settings}
        given["BITMTP_SYSTEM_ROOT"] = str(root)
        options = [f"-D{name}={value}" for name, value in given.items()]
        done = subprocess.run(
            [str(CMAKE), *options, "-P", str(script)],
            capture_output=True,
            text=True,
            env={"PATH": "/none", "HOME": os.environ.get("HOME", "/")},
        )
        if done.returncode != 0:
            raise RuntimeError(" ".join(done.stderr.split()))
        lines = done.stderr.splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line and line[:1].isupper())
        root_text = f"{root}/"
        return {name: value.replace(root_text, "") for name, value in values.items()}, [
            line for line in done.stdout.splitlines() if line.startswith("--")
        ]

    return choose


def test_a_jetson_builds_both_for_its_gpu_alone(choose: Choose) -> None:
    values, said = choose(RELEASE, NVCC, HEADERS)
    assert values == {
        "BITMTP_CUDA": "ON",
        "BITMTP_TENSORRT": "ON",
        "BITMTP_TENSORRT_INCLUDE": str(Path(HEADERS).parent),
        "CMAKE_CUDA_COMPILER": NVCC,
        "CMAKE_CUDA_ARCHITECTURES": "87-real",
    }
    assert said == []


def test_a_jetson_without_headers_builds_the_kernels(choose: Choose) -> None:
    values, said = choose(RELEASE, NVCC)
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("ON", "OFF")
    assert len(said) == 1 and "TensorRT library skipped: no NvInferRuntime.h" in said[0]
    assert "sudo apt install nvidia-jetpack" in said[0]


def test_a_jetson_without_nvcc_builds_none(choose: Choose) -> None:
    values, said = choose(RELEASE, HEADERS)
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("OFF", "OFF")
    assert len(said) == 1 and "CUDA and TensorRT libraries skipped: no nvcc" in said[0]


def test_elsewhere_none_is_built_unasked(choose: Choose) -> None:
    values, said = choose(NVCC, HEADERS)
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("OFF", "OFF")
    assert len(said) == 1 and "no Jetson" in said[0]
    assert values["CMAKE_CUDA_ARCHITECTURES"] == ""


def test_what_is_asked_for_is_built(choose: Choose) -> None:
    values, _ = choose(NVCC, BITMTP_CUDA="ON")
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("ON", "OFF")
    values, _ = choose(NVCC, HEADERS, BITMTP_TENSORRT="ON")
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("ON", "ON")
    values, _ = choose(RELEASE, NVCC, HEADERS, BITMTP_CUDA="OFF")
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("OFF", "OFF")
    values, _ = choose(RELEASE, NVCC, HEADERS, BITMTP_TENSORRT="OFF")
    assert (values["BITMTP_CUDA"], values["BITMTP_TENSORRT"]) == ("ON", "OFF")
    values, _ = choose(RELEASE, NVCC, HEADERS, CMAKE_CUDA_ARCHITECTURES="90-real")
    assert values["CMAKE_CUDA_ARCHITECTURES"] == "90-real"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"BITMTP_TENSORRT": "ON"}, "BITMTP_TENSORRT is ON, and there is no NvInferRuntime.h"),
        ({"BITMTP_TENSORRT": "yes"}, "BITMTP_TENSORRT is 'yes', expected AUTO, ON or OFF"),
    ],
)
def test_what_cannot_be_built_is_told(choose: Choose, settings: dict[str, str], told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        choose(**settings)


def test_plugins_are_made_of_kernels(choose: Choose) -> None:
    with pytest.raises(RuntimeError, match="BITMTP_TENSORRT is ON and BITMTP_CUDA is OFF"):
        choose(NVCC, HEADERS, BITMTP_TENSORRT="ON", BITMTP_CUDA="OFF")
