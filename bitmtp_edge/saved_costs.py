"""Step costs kept between runs, in time and in power: measured once for a bundle, engine, machine
and power mode.

The files lie beside the bundle, in ``engines/NAME/``, or where that cannot be written, in the
user's cache folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from .bundle import BUNDLE_FILE, Bundle, sha256_of
from .decode.costs import CostTable, measure_costs
from .decode.energy_costs import PowerTable
from .decode.replay_states import ReplayStates
from .engines.base import Engine
from .environment import environment
from .errors import UserError
from .records import read_record

SCHEMA = 3
MODE_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"


@dataclass(frozen=True)
class Measured:
    """What the costs hold for. bundle: SHA-256 of its bundle.json, which has that of every file.
    processor: what steps run on, a GPU too. power_mode: the board's, None where there are none."""

    bundle: str
    engine: str
    threads: int | None
    processor: str | None
    instructions: str | None
    sdk: str
    power_mode: str | None


class SavedFile(Protocol):
    """What the JSON of a saved file holds."""

    @property
    def measured(self) -> Measured: ...

    def fits(self, states: ReplayStates) -> bool: ...


@dataclass(frozen=True)
class CostFile:
    """The JSON of a file of times."""

    schema: int
    measured: Measured
    costs: CostTable

    def fits(self, states: ReplayStates) -> bool:
        return self.costs.fits(states)


@dataclass(frozen=True)
class PowerFile:
    """The JSON of a file of watts. root: where the sensor's files were found."""

    schema: int
    measured: Measured
    power: PowerTable
    root: str = "/"

    def fits(self, states: ReplayStates) -> bool:
        return self.power.fits(states)


Saved = TypeVar("Saved", bound=SavedFile)


def costs_of(
    bundle: Bundle,
    engine: Engine,
    states: ReplayStates,
    notice: Callable[[str], None],
    root: Path = Path("/"),
    anew: bool = False,
) -> CostTable:
    """The saved costs unless ``anew``, or new ones, of the power mode that ``root`` tells.

    New ones are saved if a folder takes them and the machine was quiet. ``notice`` is told in one
    line that steps are measured, and why a saved file is not used; and in one more, if the times
    are not worth saving.
    """
    key = _key(bundle, engine, root)
    places = _places(bundle, key, "costs")
    found, reason = (None, None) if anew else _read(CostFile, places, key, states)
    if found is not None:
        return found.costs
    told = "measuring what steps cost here, which takes some seconds"
    notice(told if reason is None else f"{reason}: {told}")
    measured = measure_costs(engine, states)
    if measured.steady:
        _save(CostFile(SCHEMA, key, measured.costs), places)
    else:
        notice(
            f"step costs are used now and not saved: runs of one step differ {measured.spread:.1f} "
            "times, so something else is busy here; measure again when it is not: bitmtp-edge "
            "inspect BUNDLE --costs --measure"
        )
    return measured.costs


def power_of(
    bundle: Bundle,
    engine: Engine,
    states: ReplayStates,
    notice: Callable[[str], None],
    source_name: str = "auto",
    root: Path = Path("/"),
) -> PowerTable:
    """The saved power of steps, or what is measured now and saved, by ``source_name`` below
    ``root``. "auto": what is saved, whichever source that is of, else the first source that works.

    ``notice`` is told how long measuring takes, and why a saved file is not used. Raises UserError
    where no power source works, the one that does gives no figure, or there is to be none ("off").
    """
    from .power.metering import OFF
    from .power.registry import AUTO
    from .power.source import Where
    from .step_power import measure_power, measuring_seconds, open_source_of

    if source_name == OFF:
        raise UserError(
            "the objective energy needs to know what steps draw, and the power sensor is off "
            "(--energy off): leave that out, or take the objective speed"
        )

    def other(file: PowerFile) -> str | None:
        if source_name not in (AUTO, file.power.source):
            return "power source"
        return None if file.root == str(root) else "root"

    key = _key(bundle, engine, root)
    places = _places(bundle, key, "power")
    found, reason = _read(PowerFile, places, key, states, other)
    if found is not None:
        return found.power
    with open_source_of(engine, Where(root, gpu=engine.gpu), source_name) as source:
        seconds = measuring_seconds(states, source)
        told = (
            "measuring what steps draw here, once for this machine and power mode: about "
            f"{seconds:.0f} s, by {source.name}"
        )
        notice(told if reason is None else f"{reason}: {told}")
        power = measure_power(engine, states, source)
    _save(PowerFile(SCHEMA, key, power, str(root)), places)
    return power


def _key(bundle: Bundle, engine: Engine, root: Path) -> Measured:
    here = environment(engine)
    return Measured(
        sha256_of(bundle.path / BUNDLE_FILE),
        here.engine,
        here.threads,
        here.device or here.processor,
        here.instructions,
        here.versions["bitmtp-edge"],
        power_mode(root),
    )


def power_mode(root: Path) -> str | None:
    """The name of the board's power mode now; None where there are none."""
    from .power.modes import PowerModes

    try:
        current = PowerModes(root).current()
    except UserError:
        return None
    return None if current is None else current.name


def _places(bundle: Bundle, key: Measured, what: str) -> list[Path]:
    """Where the file of ``what`` for this power mode may lie, the preferred place first."""
    mode = "".join(each if each in MODE_CHARACTERS else "_" for each in key.power_mode or "")
    name = f"{what}-{key.threads or 'all'}-threads{'-' * bool(mode)}{mode}.json"
    places = [bundle.path / "engines" / key.engine / name]
    if (cache := _cache_folder()) is not None:
        places.append(cache / "bitmtp-edge" / key.bundle[:16] / key.engine / name)
    return places


def _cache_folder() -> Path | None:
    """The user's, None for one without a home. A relative XDG_CACHE_HOME counts as none, as its
    specification says."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        return None


def _read(
    kind: type[Saved],
    places: list[Path],
    key: Measured,
    states: ReplayStates,
    other: Callable[[Saved], str | None] = lambda file: None,
) -> tuple[Saved | None, str | None]:
    """A file that holds for ``key``, and of which ``other`` says nothing; else None and what is
    wrong with the one that was found."""
    reason = None
    for path in places:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(value, dict) and value.get("schema", SCHEMA) != SCHEMA:
                reason = reason or f"{path} is of another schema"
                continue
            file = read_record(kind, value, str(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError, UserError):
            reason = reason or f"{path} is damaged"
            continue
        changed = [name for name, now in asdict(key).items() if getattr(file.measured, name) != now]
        if changed or (more := other(file)) is not None:
            reason = reason or f"{path} is of another {changed[0] if changed else more}"
        elif file.fits(states):
            return file, None
        else:
            reason = reason or f"{path} is damaged"
    return None, reason


def _save(file: CostFile | PowerFile, places: list[Path]) -> None:
    """Writes the file to the first place that takes it; none has to."""
    text = json.dumps(asdict(file), indent=1) + "\n"
    for path in places:
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
            return
        except OSError:
            with suppress(OSError):
                partial.unlink()
