"""File trees of boards, for what reads the machine it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# nvpmodel.conf has other records with NAME= and DEFAULT=, and no order.
NX_CONF = """\
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
<PARAM TYPE=CLOCK NAME=EMC >
MAX_FREQ /sys/kernel/nvpmodel_clk_cap/emc
< POWER_MODEL ID=0 NAME=MAXN_SUPER >
GPU MAX_FREQ -1
< POWER_MODEL NAME=10W ID=1 >
<POWER_MODEL  ID = 4  NAME = 40W >
< PM_CONFIG DEFAULT=4 >
"""


def _packages(**versions: str) -> str:
    stanza = "Package: {}\nStatus: install ok installed\nArchitecture: arm64\nVersion: {}\n"
    return "\n".join(
        stanza.format(name.replace("_", "-"), version) for name, version in versions.items()
    )


def _memory(total_mb: int, available_mb: int, swap_mb: int) -> str:
    return (
        f"MemTotal:       {total_mb << 10} kB\nMemFree:        1000 kB\n"
        f"MemAvailable:   {available_mb << 10} kB\nSwapTotal:      {swap_mb << 10} kB\n"
        "HugePages_Total:       0\n"
    )


JETPACK6 = {
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, "
    "EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025\n# KERNEL_VARIANT: oot\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin NX Engineering Reference Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0000\0nvidia,p3767-0000\0"
    "nvidia,tegra234\0",
    "proc/meminfo": _memory(15598, 14000, 7799),
    "var/lib/dpkg/status": _packages(
        nvidia_jetpack="6.2+b77",
        nvidia_l4t_core="36.4.3-20250107174145",
        libnvinfer10="10.3.0.30-1+cuda12.5",
        libnvinfer_plugin10="10.3.0.30-1+cuda12.5",
    ),
    "usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.6.68"}}',
    "usr/local/cuda/bin/nvcc": "",
    "usr/include/aarch64-linux-gnu/NvInferRuntime.h": "",
    "usr/lib/python3.10/dist-packages/tensorrt/__init__.py": "",
    "etc/nvpmodel.conf": NX_CONF,
    "var/lib/nvpmodel/status": "pmode:0004",
}

JETPACK7 = {
    "etc/nv_tegra_release": "# R39 (release), REVISION: 2.0, GCID: 1, BOARD: generic\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit Super\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super\0nvidia,p3767-0005\0"
    "nvidia,tegra234\0",
    "proc/meminfo": _memory(7546, 6500, 0),
    "var/lib/dpkg/status": _packages(libnvinfer10="10.16.2.10-1+cuda13.2"),
    "usr/local/cuda/version.json": '{"cuda": {"version": "13.2.1"}}',
    "usr/local/cuda/bin/nvcc": "",
    "usr/include/aarch64-linux-gnu/NvInferRuntime.h": "",
    "usr/lib/python3.12/dist-packages/tensorrt/__init__.py": "",
}


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_board(root: Path, files: Mapping[str, str]) -> Path:
    """Writes ``files`` below ``root``, which it returns."""
    for name, text in files.items():
        write_file(root / name, text)
    return root
