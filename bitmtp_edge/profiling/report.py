"""What a profile found: the JSON that it writes after every point, and goes on from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ..decode.costs import STEADY
from ..environment import Environment
from ..errors import UserError
from ..files import new_file
from ..power.clocks import Seen
from ..power.report import Stretch
from ..records import read_record
from .soundness import check_sound
from .statistics import Estimate

Setting = int | float | str | None


@dataclass(frozen=True)
class PointKey:
    """What is measured. power_mode: None where the machine has none, or none was told."""

    power_mode: str | None
    policy: str
    settings: dict[str, Setting]

    @property
    def label(self) -> str:
        """The policy and its settings: ``hybrid D=8 tau=0.9 m=2``."""
        names = {"block": "D", "min_prefix": "m"}
        told = (
            f"{names.get(name, name)}={value}"
            for name, value in self.settings.items()
            if name in ("gamma", "block", "tau", "min_prefix")
        )
        saved = ("for energy",) if self.settings.get("objective") == "energy" else ()
        return " ".join((self.policy, *told, *saved))

    @property
    def name(self) -> str:
        """The label behind the power mode, where there is one."""
        return self.label if self.power_mode is None else f"{self.power_mode} {self.label}"


@dataclass(frozen=True)
class Request:
    """What was asked for, and what answers: an unfinished profile goes on where all of it is equal.

    bundle: SHA-256 of bundle.json, which has that of every file. prompts: SHA-256 of the prompts'
    token ids. within: the share of the mean that half the 95 % interval may have. min_seconds: of
    decoding, for each prompt of a round. energy: the power source, None without one.
    """

    bundle: str
    sdk: str
    engine: str
    threads: int | None
    device: str | None
    prompts: str
    prompt_count: int
    max_new_tokens: int
    within: float
    max_rounds: int
    min_seconds: float
    energy: str | None
    points: tuple[PointKey, ...]


@dataclass(frozen=True)
class Trace:
    """Power (W) over time (s) in the first round, and what ran when, in the same seconds."""

    seconds: tuple[float, ...]
    watts: tuple[float, ...]
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True)
class Conditions:
    """The machine while it was measured. celsius: highest of the hottest sensor, whose name is
    ``hottest``. memory_mhz: of the GPU's, or of a board's. None where nobody tells. throttled_by:
    all that held clocks down at some look, twice a second."""

    celsius: float | None
    hottest: str | None
    gpu_mhz: Seen | None
    memory_mhz: Seen | None
    jetson_clocks: bool | None
    throttled_by: tuple[str, ...]


@dataclass(frozen=True)
class ProfilePoint:
    """One policy in one power mode. date: UTC, when it was done.

    tight: the intervals of tokens_per_s and joules_per_token are within what was asked for.
    tokens_per_s: generated tokens over decode seconds. joules_per_token: joules of decoding over
    generated tokens, of the rounds that have them; ``reason`` says why others, or all, have none.
    watts: mean of decoding. idle_watts: of the machine with the model loaded, before; never
    subtracted. counter_over_integrated: joules of the energy counter over integrated power; None
    without one. decode_share: of the time that joules are of, what was decoding and not between two
    replies. generated_tokens: of all rounds. step_spread: of runs of one step before and behind the
    rounds, the median over the fastest, whichever was more. min_prefix: what ``auto`` came to here.
    The last two are None in files of older versions.
    """

    key: PointKey
    date: str
    tight: bool
    tokens_per_s: Estimate
    joules_per_token: Estimate | None
    watts: Estimate | None
    reason: str | None
    total_is: str | None
    counter_over_integrated: float | None
    decode_share: float | None
    idle_watts: float | None
    tokens_per_iteration: float
    verified_share: float
    generated_tokens: int
    seconds: float
    conditions: Conditions
    trace: Trace | None
    step_spread: float | None = None
    min_prefix: int | None = None

    @property
    def busy(self) -> str | None:
        """That something else had the machine, if it did."""
        if self.step_spread is None or self.step_spread <= STEADY:
            return None
        return (
            f"runs of one step differ {self.step_spread:.1f} times, so something else is busy here"
        )


@dataclass(frozen=True)
class Failure:
    """A point that was asked for and has no figures. date: UTC. The same command tries it again."""

    key: PointKey
    date: str
    reason: str


@dataclass(frozen=True)
class ProfileReport:
    """complete: every point of the request is measured; else the same command goes on.
    energy_reason: why there is no meter. environment: where the newest part was measured.
    from_before: points of a finished run that are asked for again, and not yet measured again.
    failed: points that this run could not measure."""

    complete: bool
    command: str
    bundle: str
    model: str
    prompt_file: str
    energy_reason: str | None
    request: Request
    environment: Environment
    points: tuple[ProfilePoint, ...]
    from_before: tuple[PointKey, ...] = ()
    failed: tuple[Failure, ...] = ()

    @property
    def without_figures(self) -> tuple[Failure, ...]:
        """What failed and has no point, of a run before either."""
        return tuple(each for each in self.failed if self.point(each.key) is None)

    @property
    def failures(self) -> dict[str, str]:
        """Names of points that failed, of one reason together, and that reason."""
        reasons = dict.fromkeys(each.reason for each in self.failed)
        return {
            ", ".join(each.key.name for each in self.failed if each.reason == reason): reason
            for reason in reasons
        }

    def point(self, key: PointKey) -> ProfilePoint | None:
        """The one of ``key``, if it was measured."""
        return next((point for point in self.points if point.key == key), None)


def write_report(path: Path, report: ProfileReport) -> None:
    """Replaces the file when all is written. OSError names it."""
    with new_file(path) as file:
        file.write(f"{json.dumps(asdict(report), indent=1, allow_nan=False)}\n".encode())


def read_report(path: Path) -> ProfileReport:
    """UserError, naming the field, for a file that is none, or holds what no profile measures;
    OSError where it cannot be read."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UserError(f"{path} is no regular file: give a profile's JSON")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not a profile's JSON: give another file") from None
    report = read_record(ProfileReport, value, str(path))
    check_sound(report, str(path))
    return report
