"""Board profiles: every file is one, and what its fields say is possible."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.errors import UserError
from bitmtp_edge.export.synthetic import describe_synthetic
from bitmtp_edge.footprint import footprint
from bitmtp_edge.profiles import load_profile, profile_names, profile_of_module

NAMES = profile_names()


def test_there_is_one_for_every_orin() -> None:
    assert NAMES == (
        "agx-orin-32gb",
        "agx-orin-64gb",
        "orin-nano-4gb",
        "orin-nano-8gb",
        "orin-nx-16gb",
        "orin-nx-8gb",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_one(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name and profile.board.startswith("NVIDIA Jetson ")
    assert profile.sm == "8.7" and profile.modules
    assert name.endswith(f"-{profile.memory_mb >> 10}gb")
    assert 0 < profile.available_mb < profile.usable_mb < profile.memory_mb
    assert set(profile.unverified) <= set(vars(profile))


@pytest.mark.parametrize("name", NAMES)
def test_its_rails(name: str) -> None:
    power = load_profile(name).power
    assert len(set(power.rails)) == len(power.rails) >= 3
    if name.startswith("agx"):
        assert power.total is None and "VDD_IN" not in power.rails
    else:
        assert power.total == "VDD_IN" and power.total in power.rails


@pytest.mark.parametrize("name", NAMES)
def test_its_power_modes(name: str) -> None:
    modes = load_profile(name).modes
    assert len({mode.name for mode in modes}) == len(modes) >= 4
    full = modes[0]
    for mode in modes:
        assert mode.flashed and set(mode.flashed) <= {"standard", "super"}
        assert mode.jetpack and set(mode.jetpack) <= {6, 7}
        assert 300 <= mode.gpu_mhz <= max(each.gpu_mhz for each in modes)
        assert mode.multiprocessors % 2 == 0 and mode.multiprocessors <= full.multiprocessors
        assert 30 < mode.bandwidth_gb_s <= full.bandwidth_gb_s < 205
        assert set(mode.unverified) <= set(vars(mode))
        assert mode.name != "MAXN_SUPER" or mode.flashed == ("super",)
        assert mode.sure == (mode.name != "MAXN_SUPER" or name != "agx-orin-32gb")
    assert any("standard" in mode.flashed for mode in modes)


@pytest.mark.parametrize("name", NAMES)
def test_its_default_segments_fit(name: str) -> None:
    """A ternary model of 1.7 billion weights, with as much history as the profile says."""
    profile = load_profile(name)
    bundle = describe_synthetic("bonsai-1.7b")
    states = ReplayStates.of(bundle)
    segments = profile.defaults.segments
    assert segments[0] == 512 and all(2 * a == b for a, b in pairwise(segments))
    assert set(segments) <= set(states.segments)
    found = footprint(bundle, (each for each in states.all() if each.segment in segments))
    assert found.total <= profile.available_mb << 20
    assert profile.defaults.block == bundle.decoding.block
    assert profile.defaults.prefill_chunk == states.prefill_chunk


def test_a_mode_by_name() -> None:
    profile = load_profile("orin-nx-16gb")
    assert profile.mode("maxn_super") is profile.modes[0]
    with pytest.raises(UserError, match="no power mode '50W': expected one of MAXN_SUPER, 40W"):
        profile.mode("50W")


@pytest.mark.parametrize("name", ["orin", "../orin-nx-8gb", "orin-nx-8gb.toml", ""])
def test_no_such_profile(name: str) -> None:
    with pytest.raises(UserError, match=r"no board profile .*: expected one of agx-orin-32gb, "):
        load_profile(name)


@pytest.mark.parametrize(
    ("modules", "memory_mb", "name"),
    [
        (("p3767-0000",), 15598, "orin-nx-16gb"),
        (("p3767-0002",), 15598, "orin-nx-16gb"),
        (("p3767-0001",), 7500, "orin-nx-8gb"),
        (("p3767-0003",), 7620, "orin-nano-8gb"),
        (("p3767-0005",), 7620, "orin-nano-8gb"),
        (("p3767-0004",), None, "orin-nano-4gb"),
        (("p3701-0000",), 30697, "agx-orin-32gb"),
        (("p3701-0004",), 30697, "agx-orin-32gb"),
        (("p3701-0005",), 62780, "agx-orin-64gb"),
        (("p2888-0001",), 30697, None),
        ((), 7620, None),
    ],
)
def test_the_board_that_a_device_tree_names(
    modules: tuple[str, ...], memory_mb: int | None, name: str | None
) -> None:
    found = profile_of_module(modules, None if memory_mb is None else memory_mb << 20)
    assert (found and found.name) == name
