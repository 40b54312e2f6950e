"""Clocks of a Jetson, and what held them down."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge.power.clocks import ClockReader, Clocks, ClockWatch, Seen

from . import trees

GPU = "sys/class/devfreq/17000000.gpu"
OC = "sys/class/hwmon/hwmon2"


def gpu(root: Path, now: int, low: int = 306, high: int = 918, place: str = GPU) -> None:
    for which, megahertz in (("cur", now), ("min", low), ("max", high)):
        trees.write(root / place / f"{which}_freq", megahertz * 1_000_000)


def core(root: Path, number: int, low: int, high: int) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{number}/cpufreq"
    trees.write(folder / "scaling_min_freq", low)
    trees.write(folder / "scaling_max_freq", high)


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    gpu(tmp_path, 612)
    trees.write(tmp_path / "sys/kernel/debug/bpmp/debug/clk/emc/rate", 3_199_000_000)
    core(tmp_path, 0, 729600, 1984000)
    trees.write(tmp_path / OC / "name", "soctherm_oc")
    for event in (1, 2, 3):
        trees.write(tmp_path / OC / f"oc{event}_event_cnt", 10 * event)
    for number, kind in enumerate(("pwm-fan", "gpu-throttle-alert", "cpufreq-cpu0")):
        trees.write(tmp_path / f"sys/class/thermal/cooling_device{number}/type", kind)
        trees.write(tmp_path / f"sys/class/thermal/cooling_device{number}/cur_state", 0)
    trees.orin_nx(tmp_path)
    return tmp_path


def test_now(orin: Path) -> None:
    assert ClockReader(orin).read() == Clocks(
        gpu_mhz=612,
        gpu_min_mhz=306,
        gpu_max_mhz=918,
        emc_mhz=3199,
        jetson_clocks=False,
        events={
            "under-voltage": 10,
            "average over-current": 20,
            "instantaneous over-current": 30,
        },
        throttled_by=[],
        tells_throttling=True,
    )


def test_temperatures(tmp_path: Path) -> None:
    for number, (kind, heat) in enumerate((("cpu-thermal", 48250), ("gpu-thermal", 51000))):
        trees.write(tmp_path / f"sys/class/thermal/thermal_zone{number}/type", kind)
        trees.write(tmp_path / f"sys/class/thermal/thermal_zone{number}/temp", heat)
    trees.write(tmp_path / "sys/class/thermal/thermal_zone2/type", "cv0-thermal")  # tells nothing
    watch = ClockWatch(tmp_path, every_s=60)
    with watch:
        trees.write(tmp_path / "sys/class/thermal/thermal_zone1/temp", 63500)
    assert ClockReader(tmp_path).read().celsius == {"cpu-thermal": 48.25, "gpu-thermal": 63.5}
    trees.write(tmp_path / "sys/class/thermal/thermal_zone1/temp", 40000)
    assert watch.report().celsius == {"cpu-thermal": 48.25, "gpu-thermal": 63.5}


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert ClockReader(tmp_path).read() == Clocks(None, None, None, None, None, {}, [])


@pytest.mark.parametrize(
    "place",
    [
        "sys/devices/17000000.ga10b/devfreq/17000000.ga10b",
        "sys/devices/platform/17000000.gpu/devfreq/17000000.gpu",
        "sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu",
        "sys/class/devfreq/17000000.gv11b",
        "sys/class/devfreq/gpu-gpc-0",
    ],
)
def test_places_of_the_gpu(place: str, tmp_path: Path) -> None:
    gpu(tmp_path, 1300, place=place)
    gpu(tmp_path, 1, place="sys/class/devfreq/15340000.vic")
    assert ClockReader(tmp_path).read().gpu_mhz == 1300


def test_pinned_clocks(orin: Path) -> None:
    gpu(orin, 918, 918, 918)
    assert ClockReader(orin).read().jetson_clocks is False  # a core is not
    core(orin, 0, 1984000, 1984000)
    assert ClockReader(orin).read().jetson_clocks is True


def test_what_throttles_now(orin: Path) -> None:
    trees.write(orin / "sys/class/thermal/cooling_device0/cur_state", 3)  # the fan is no throttle
    trees.write(orin / "sys/class/thermal/cooling_device1/cur_state", 1)
    hwmon = orin / "sys/bus/i2c/devices/1-0040/hwmon/hwmon1"
    trees.write(hwmon / "curr1_max_alarm", 1)
    trees.write(hwmon / "curr1_crit_alarm", 1)
    assert ClockReader(orin).read().throttled_by == ["VDD_IN current", "gpu-throttle-alert"]


def test_a_run(orin: Path) -> None:
    with ClockWatch(orin, every_s=60) as watch:
        gpu(orin, 306)
        watch._looks.append(watch._reader.read())
        gpu(orin, 918)
        trees.write(orin / OC / "oc3_event_cnt", 37)
        trees.write(orin / "sys/class/thermal/cooling_device2/cur_state", 1)
    report = watch.report()
    assert report.looks == 3
    assert report.gpu_mhz == Seen(306, 612, 918)
    assert report.emc_mhz == Seen(3199, 3199, 3199)
    assert report.jetson_clocks is False
    assert report.events["instantaneous over-current"] == 7
    assert report.events["under-voltage"] == 0
    assert report.throttled_by == ["cpufreq-cpu0"]


def test_it_looks_by_itself(orin: Path) -> None:
    with ClockWatch(orin, every_s=0.001) as watch:
        while len(watch._looks) < 4:
            pass
    assert watch.report().gpu_mhz == Seen(612, 612, 612)


@pytest.mark.parametrize("absurd", ["9" * 400, "9" * 18, ""])
def test_what_no_machine_tells_is_not_told(absurd: str, tmp_path: Path) -> None:
    gpu(tmp_path, 612)
    trees.write(tmp_path / GPU / "cur_freq", absurd)
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    trees.write(zone / "type", "gpu-thermal")
    trees.write(zone / "temp", absurd)
    found = ClockReader(tmp_path).read()
    assert (found.gpu_mhz, found.gpu_max_mhz, found.celsius) == (None, 918, {})
