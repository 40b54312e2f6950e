"""Fake folders of the kernel's files, with values that were read on boards."""

from __future__ import annotations

import sys
from pathlib import Path

UNLIMITED = 32760


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def channel(
    hwmon: Path, number: int, label: str, millivolts: int, milliamperes: int, limit: int = UNLIMITED
) -> None:
    write(hwmon / f"in{number}_label", label)
    write(hwmon / f"in{number}_input", millivolts)
    write(hwmon / f"curr{number}_input", milliamperes)
    for kind in ("max", "crit"):
        write(hwmon / f"curr{number}_{kind}", limit)
        write(hwmon / f"curr{number}_{kind}_alarm", 0)


def chip(root: Path, address: str, hwmon: int) -> Path:
    """An INA3221's hwmon folder, below its I2C device."""
    device = root / "sys/bus/i2c/devices" / address
    write(device / "name", "ina3221")
    return device / "hwmon" / f"hwmon{hwmon}"


def shunt_sums(hwmon: Path, microvolts: int, milliamperes: int) -> None:
    write(hwmon / "in7_label", "sum of shunt voltages")
    write(hwmon / "in7_input", microvolts)
    write(hwmon / "curr4_input", milliamperes)


def orin_nx(root: Path) -> Path:
    hwmon = chip(root, "1-0040", 1)
    channel(hwmon, 1, "VDD_IN", 5024, 6020, 7784)
    channel(hwmon, 2, "VDD_CPU_GPU_CV", 5024, 3000)
    channel(hwmon, 3, "VDD_SOC", 5024, 700)
    shunt_sums(hwmon, 48600, 9720)
    return hwmon


def orin_nano(root: Path) -> Path:
    hwmon = chip(root, "1-0040", 3)
    channel(hwmon, 1, "VDD_IN", 4936, 1040, 5232)
    channel(hwmon, 2, "VDD_CPU_GPU_CV", 4928, 216)
    channel(hwmon, 3, "VDD_SOC", 4936, 312)
    return hwmon


def agx_orin(root: Path) -> Path:
    """As JetPack 5 shows it; the second chip has the lower hwmon number."""
    first = chip(root, "1-0040", 4)
    channel(first, 1, "VDD_GPU_SOC", 12008, 280)
    channel(first, 2, "VDD_CPU_CV", 12008, 40)
    channel(first, 3, "VIN_SYS_5V0", 4968, 980)
    shunt_sums(first, 760, 360)
    second = chip(root, "1-0041", 3)
    channel(second, 1, "NC", 0, 0)
    channel(second, 2, "VDDQ_VDD2_1V8AO", 4968, 80)
    channel(second, 3, "NC", 0, 0)
    supply = root / "sys/class/power_supply/ucsi-source-psy-1-00081"
    for name, value in (("type", "USB"), ("online", 1), ("voltage_now", 5000000)):
        write(supply / name, value)
    write(supply / "current_now", 3000000)
    return first


def legacy_iio(root: Path) -> Path:
    device = root / "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1"
    write(device / "rail_name_0", "VDD_IN")
    write(device / "in_power0_input", 4321)
    write(device / "in_voltage0_input", 5000)
    write(device / "in_current0_input", 864)
    write(device / "crit_current_limit_0", "32760 ma")
    return device


def powercap(root: Path, zones: dict[str, tuple[str, int]]) -> dict[str, Path]:
    """RAPL zones, ``folder: (name, microjoules)``; their counters."""
    counters = {}
    for folder, (name, microjoules) in zones.items():
        zone = root / "sys/class/powercap" / folder
        write(zone / "name", name)
        write(zone / "energy_uj", microjoules)
        write(zone / "max_energy_range_uj", 1_000_000)
        counters[folder] = zone / "energy_uj"
    return counters


def script(path: Path, source: str) -> Path:
    """A command made of Python source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable} -SE\n{source}")
    path.chmod(0o755)
    return path


def package(folder: Path, name: str, source: str) -> Path:
    """A package of one module, in a folder that can go on ``sys.path``."""
    write(folder / name / "__init__.py", source)
    return folder
