"""Step costs kept between runs: measured once for a bundle, engine and machine.

The file lies beside the bundle, in ``engines/NAME/``, or where that cannot be written, in the
user's cache folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from .bundle import BUNDLE_FILE, Bundle, sha256_of
from .decode.costs import CostTable, measure_costs
from .decode.replay_states import ReplayStates
from .engines.base import Engine
from .environment import environment
from .errors import UserError
from .records import read_record


@dataclass(frozen=True)
class Measured:
    """What the costs hold for. bundle: SHA-256 of its bundle.json, which has that of every file.
    processor: what steps run on, a GPU too."""

    bundle: str
    engine: str
    threads: int | None
    processor: str | None
    instructions: str | None
    sdk: str


@dataclass(frozen=True)
class CostFile:
    """The JSON of a cost file."""

    measured: Measured
    costs: CostTable


def costs_of(
    bundle: Bundle,
    engine: Engine,
    states: ReplayStates,
    notice: Callable[[str], None],
    anew: bool = False,
) -> CostTable:
    """The saved costs unless ``anew``, or new ones.

    New ones are saved if a folder takes them and the machine was quiet. ``notice`` is told in one
    line that steps are measured, and why a saved file is not used; and in one more, if the times
    are not worth saving.
    """
    key = _key(bundle, engine)
    found, reason = (None, None) if anew else _read(bundle, key, states)
    if found is not None:
        return found
    told = "measuring what steps cost here, which takes some seconds"
    notice(told if reason is None else f"{reason}: {told}")
    measured = measure_costs(engine, states)
    if measured.steady:
        _save(CostFile(key, measured.costs), _places(bundle, key))
    else:
        notice(
            f"step costs are used now and not saved: runs of one step differ {measured.spread:.1f} "
            "times, so something else is busy here; measure again when it is not: bitmtp-edge "
            "inspect BUNDLE --costs --measure"
        )
    return measured.costs


def _key(bundle: Bundle, engine: Engine) -> Measured:
    here = environment(engine)
    return Measured(
        sha256_of(bundle.path / BUNDLE_FILE),
        here.engine,
        here.threads,
        here.device or here.processor,
        here.instructions,
        here.versions["bitmtp-edge"],
    )


def _places(bundle: Bundle, key: Measured) -> list[Path]:
    """Where a cost file may lie, the preferred place first."""
    name = f"costs-{key.threads or 'all'}-threads.json"
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
    bundle: Bundle, key: Measured, states: ReplayStates
) -> tuple[CostTable | None, str | None]:
    """Costs that hold for ``key``; else None and what is wrong with the file that was found."""
    reason = None
    for path in _places(bundle, key):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            file = read_record(CostFile, value, str(path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError, UserError):
            reason = reason or f"{path} is damaged"
            continue
        changed = [name for name, now in asdict(key).items() if getattr(file.measured, name) != now]
        if changed:
            reason = reason or f"{path} is of another {changed[0]}"
        elif file.costs.fits(states):
            return file.costs, None
        else:
            reason = reason or f"{path} is damaged"
    return None, reason


def _save(file: CostFile, places: list[Path]) -> None:
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
