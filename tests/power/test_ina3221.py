"""INA3221: every layout gives the board's watts, and nothing that is no rail."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge.power.ina3221 import POLL_S, Ina3221
from bitmtp_edge.power.source import Reading, SourceError, Where

from . import trees

AGX_RAILS = ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]


def read(root: Path) -> Reading:
    return Ina3221(Where(root)).read()


@pytest.mark.parametrize(
    ("build", "watts", "total_is", "rails"),
    [
        (trees.orin_nx, 30.24, "VDD_IN", ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]),
        (trees.orin_nano, 5.133, "VDD_IN", ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]),
        (trees.agx_orin, 9.108, "sum of " + ", ".join(AGX_RAILS), AGX_RAILS),
        (trees.legacy_iio, 4.321, "VDD_IN", ["VDD_IN"]),
    ],
)
def test_layouts(
    build: Callable[[Path], Path], watts: float, total_is: str, rails: list[str], tmp_path: Path
) -> None:
    build(tmp_path)
    reading = read(tmp_path)
    assert reading.total_mw / 1000 == pytest.approx(watts, abs=0.005)
    assert reading.total_is == total_is
    assert list(reading.rails) == rails
    assert reading.joules is None


def test_values_of_each_rail(tmp_path: Path) -> None:
    trees.agx_orin(tmp_path)
    assert read(tmp_path).rails == {
        "VDD_GPU_SOC": 3362,
        "VDD_CPU_CV": 480,
        "VIN_SYS_5V0": 4869,
        "VDDQ_VDD2_1V8AO": 397,
    }


@pytest.mark.parametrize(
    "place",
    [
        "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon7",
        "sys/devices/platform/c240000.i2c/i2c-1/1-0040/hwmon/hwmon7",
        "sys/devices/platform/bus@0/c240000.i2c/i2c-1/1-0040/hwmon/hwmon7",
        "sys/class/hwmon/hwmon7",
    ],
)
def test_other_places(place: str, tmp_path: Path) -> None:
    hwmon = trees.orin_nx(tmp_path / "elsewhere")
    trees.write(hwmon / "name", "ina3221")
    (tmp_path / place).parent.mkdir(parents=True)
    shutil.copytree(hwmon, tmp_path / place)
    assert read(tmp_path).total_mw == 30244


def test_a_chip_seen_in_three_places_counts_once(tmp_path: Path) -> None:
    trees.agx_orin(tmp_path)
    for name, address in (("hwmon4", "1-0040"), ("hwmon3", "1-0041")):
        device = tmp_path / "sys/bus/i2c/devices" / address
        (device / "hwmon" / name / "device").symlink_to(device)
        for link in (
            tmp_path / "sys/class/hwmon" / name,
            tmp_path / "sys/bus/i2c/drivers/ina3221" / address / "hwmon" / name,
        ):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(device / "hwmon" / name)
    reading = read(tmp_path)
    assert reading.total_mw == 9108
    assert list(reading.rails) == AGX_RAILS  # by address, whatever the hwmon numbers


def test_other_chips_are_not_read(tmp_path: Path) -> None:
    trees.orin_nano(tmp_path)
    other = tmp_path / "sys/class/hwmon/hwmon0"
    trees.write(other / "name", "pwmfan")
    trees.channel(other, 1, "VDD_FAN", 5000, 9000)
    assert "VDD_FAN" not in read(tmp_path).rails


def test_disabled_and_unnamed_channels_are_no_rails(tmp_path: Path) -> None:
    hwmon = trees.orin_nano(tmp_path)
    trees.write(hwmon / "in2_enable", 0)
    (hwmon / "in3_label").unlink()
    assert list(read(tmp_path).rails) == ["VDD_IN"]


def test_two_rails_of_one_name_stay_two(tmp_path: Path) -> None:
    trees.channel(trees.chip(tmp_path, "1-0040", 1), 1, "VDD_A", 5000, 100)
    trees.channel(trees.chip(tmp_path, "1-0041", 2), 1, "VDD_A", 5000, 200)
    assert read(tmp_path).rails == {"VDD_A (1-0040)": 500, "VDD_A (1-0041)": 1000}


def test_two_rails_of_one_name_on_one_chip_stay_two(tmp_path: Path) -> None:
    hwmon = trees.chip(tmp_path, "1-0040", 1)
    for channel in (1, 2, 3):
        trees.channel(hwmon, channel, "VDD_A", 5000, 100 * channel)
    assert read(tmp_path).rails == {
        "VDD_A (1-0040)": 500,
        "VDD_A (1-0040, 2)": 1000,
        "VDD_A (1-0040, 3)": 1500,
    }


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda hwmon: trees.write(hwmon / "in1_enable", 0), "/in1_enable is 0)"),
        (lambda hwmon: (hwmon / "curr1_input").unlink(), "/curr1_input is missing)"),
        (lambda hwmon: (hwmon / "in1_input").unlink(), "/in1_input is missing)"),
        (lambda hwmon: (hwmon / "in1_label").unlink(), "(VDD_CPU_GPU_CV is told, and it is not)"),
        (lambda hwmon: trees.write(hwmon / "in1_label", "NC"), "(VDD_CPU_GPU_CV is told, and it"),
        (
            lambda hwmon: trees.write(hwmon / "in2_label", "VDD_IN"),
            "(two channels are labelled so)",
        ),
    ],
)
def test_a_board_whose_input_has_no_value(
    fault: Callable[[Path], object], told: str, tmp_path: Path
) -> None:
    """An Orin NX that draws 30 W, of whose other rails the sum is 19 W."""
    fault(trees.orin_nx(tmp_path))
    with pytest.raises(SourceError) as refused:
        read(tmp_path)
    assert str(refused.value).startswith("VDD_IN, which feeds the whole board, gives no value (")
    assert told in str(refused.value)


def test_a_module_whose_input_nobody_names(tmp_path: Path) -> None:
    trees.channel(trees.chip(tmp_path, "1-0040", 1), 3, "VDD_SOC", 5024, 700)
    assert read(tmp_path).total_is == "sum of VDD_SOC"
    compatible = "nvidia,p3768-0000+p3767-0000-super\0nvidia,tegra234"
    trees.write(tmp_path / "proc/device-tree/compatible", compatible)
    with pytest.raises(SourceError, match=r"no value \(no channel is labelled so\)"):
        read(tmp_path)


def test_the_chips_own_pace(tmp_path: Path) -> None:
    hwmon = trees.orin_nx(tmp_path)
    assert Ina3221(Where(tmp_path)).poll_s == POLL_S
    trees.write(hwmon / "update_interval", 400)
    assert Ina3221(Where(tmp_path)).poll_s == 0.4
    trees.write(hwmon / "update_interval", 3_600_000)
    assert Ina3221(Where(tmp_path)).poll_s == 10
    for absurd in ("9" * 400, -5):
        trees.write(hwmon / "update_interval", absurd)
        assert Ina3221(Where(tmp_path)).poll_s == POLL_S


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("in1_input", "", "in1_input: expected a number, found ''"),
        ("curr1_input", "abc", "curr1_input: expected a number, found 'abc'"),
        ("in1_input", "9" * 400, f"in1_input: expected a number, found '{'9' * 40}'"),
        ("curr1_input", "9" * 18, "VDD_IN reads 4.936e+18 mW, which cannot be"),
        ("curr2_input", "-999999", "VDD_CPU_GPU_CV reads -4.928e+06 mW, which cannot be"),
        ("curr1_input", "0", "the total (VDD_IN) reads 0 mW, which cannot be"),
        ("curr1_input", "-40", "the total (VDD_IN) reads -197 mW, which cannot be"),
    ],
)
def test_values_that_cannot_be(file: str, text: str, told: str, tmp_path: Path) -> None:
    trees.write(trees.orin_nano(tmp_path) / file, text)
    with pytest.raises(SourceError) as refused:
        read(tmp_path)
    assert str(refused.value).endswith(told)


def test_a_sensor_that_goes_away(tmp_path: Path) -> None:
    hwmon = trees.orin_nano(tmp_path)
    source = Ina3221(Where(tmp_path))
    assert source.read().total_mw == 5133
    shutil.rmtree(hwmon)
    with pytest.raises(SourceError, match="No such file"):
        source.read()


def test_none_here(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no INA3221 with a named rail under"):
        Ina3221(Where(tmp_path))
