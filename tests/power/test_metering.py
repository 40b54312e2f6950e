"""Whether there is a meter: by name, the first that works, none and why, and off."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.power.metering import Metering
from bitmtp_edge.power.source import Where

from . import trees


def test_the_first_that_works(tmp_path: Path) -> None:
    trees.orin_nano(tmp_path)
    with Metering.open(where=Where(tmp_path)) as metering:
        assert metering.meter is not None and metering.reason is None
        assert (metering.source, metering.least_s) == ("ina3221", 2.0)
        assert metering.meter.source.name == "ina3221"
        window = metering.begin()
        assert window is not None
        window.abandon()
    assert (metering.begin(), metering.reason) == (None, "the meter was closed")


@pytest.mark.parametrize(("on_gpu", "last"), [(True, "nvml"), (False, "rapl")])
def test_none_that_works(tmp_path: Path, on_gpu: bool, last: str) -> None:
    """What the work runs on decides which sensors may speak for it."""
    with Metering.open(where=Where(tmp_path), on_gpu=on_gpu) as metering:
        assert (metering.begin(), metering.source) == (None, None)
        assert (metering.measure_idle(1), metering.least_s) == (None, 0.5)
        assert metering.reason is not None and "no power source works here" in metering.reason
        tried = {"nvml", "rapl"} & {each.split(":")[0] for each in metering.reason.split("; ")}
        assert tried == {last}


def test_one_that_is_named_has_to_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="power source ina3221 does not work here"):
        Metering.open("ina3221", Where(tmp_path))


def test_off(tmp_path: Path) -> None:
    trees.orin_nano(tmp_path)
    with Metering.open("off", Where(tmp_path)) as metering:
        assert metering.begin() is None
        assert metering.reason == "the meter is off (--energy off)"
