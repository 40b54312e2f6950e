"""What is known of each board: one TOML file a board, read as package data.

What a file states and where that is from stands in its comments. Nothing in them was measured by
us; ``unverified`` names what no source was found for.
"""

from __future__ import annotations

import importlib.resources
import sys
from dataclasses import dataclass

from bitmtp_edge.errors import UserError
from bitmtp_edge.records import read_record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class PowerRails:
    """Names of the rails that the board's sensors measure.

    total: the rail that feeds the whole module; None where there is none, and the sum of ``rails``
    stands for it, labelled so.
    """

    rails: tuple[str, ...]
    total: str | None = None


@dataclass(frozen=True)
class PowerMode:
    """What a power mode of nvpmodel allows.

    name: as ``nvpmodel -q`` prints it. flashed: board configurations that have it, "standard" and
    "super". jetpack: major releases that have it. gpu_mhz: the highest clock. multiprocessors: that
    are powered. bandwidth_gb_s: 10^9 bytes a second at the highest memory clock.
    """

    name: str
    flashed: tuple[str, ...]
    jetpack: tuple[int, ...]
    gpu_mhz: int
    multiprocessors: int
    bandwidth_gb_s: float
    unverified: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether its figures have a source, as its names need not."""
        return not {"gpu_mhz", "multiprocessors", "bandwidth_gb_s"} & set(self.unverified)


@dataclass(frozen=True)
class BoardDefaults:
    """What suits the board. block: tokens D of a draft block; a verify step then has D + 1 slots,
    a draft step up to 2D - 1. prefill_chunk: slots. segments: KV capacities in tokens that a
    ternary model of 1.7 billion weights fits with."""

    block: int
    prefill_chunk: int
    segments: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """A board.

    modules: as its device tree names them. sm: compute capability. memory_mb, usable_mb,
    available_mb: MiB of memory in all; left by the firmware's own; and free for an application on a
    system without a desktop, which is estimated. modes: of nvpmodel, the fastest first.
    """

    name: str
    board: str
    modules: tuple[str, ...]
    sm: str
    memory_mb: int
    usable_mb: int
    available_mb: int
    power: PowerRails
    defaults: BoardDefaults
    modes: tuple[PowerMode, ...]
    unverified: tuple[str, ...] = ()

    def mode(self, name: str) -> PowerMode:
        """The power mode ``name``, case apart. UserError for one that the board has not."""
        for mode in self.modes:
            if mode.name.lower() == name.lower():
                return mode
        have = ", ".join(mode.name for mode in self.modes)
        raise UserError(f"{self.name} has no power mode {name!r}: expected one of {have}")


def profile_names() -> tuple[str, ...]:
    """Names of all profiles, in alphabetical order."""
    files = importlib.resources.files(__name__).iterdir()
    return tuple(sorted(file.name[:-5] for file in files if file.name.endswith(".toml")))


def load_profile(name: str) -> Profile:
    """The profile ``name``. UserError for a name that is none."""
    if name not in profile_names():
        raise UserError(f"no board profile {name!r}: expected one of {', '.join(profile_names())}")
    file = importlib.resources.files(__name__) / f"{name}.toml"
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    return read_record(Profile, values, f"profile {name}")


def profile_of_module(modules: tuple[str, ...], memory: int | None = None) -> Profile | None:
    """The profile of the board whose device tree names ``modules``; None for another board.

    memory: bytes that the system shows, where they tell boards of one module apart.
    """
    fitting = [
        profile
        for profile in map(load_profile, profile_names())
        if set(profile.modules) & set(modules)
        and (memory is None or memory <= profile.memory_mb << 20)
    ]
    return min(fitting, key=lambda profile: profile.memory_mb, default=None)
