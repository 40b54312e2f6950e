"""Options that verbs share, each group gathered into one object."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from ..decode import POLICIES, SETTINGS
from ..errors import UserError
from ..wording import counted
from . import tell

if TYPE_CHECKING:
    from ..decode.adaptive import Objective
    from ..decode.loop import Decoder
    from ..decode.policies import Policy
    from ..decode.sampling import SamplingParams
    from ..engines.registry import EngineOptions
    from ..session import Session

Function = TypeVar("Function", bound=Callable[..., Any])
Count = click.IntRange(1)
NumberOrAuto = int | Literal["auto"]
_COMPARE = "; may be repeated, to compare several in one run"


@dataclass(frozen=True)
class EngineChoice:
    """``--engine``, ``--provider``, ``--threads``."""

    name: str
    provider: str | None
    threads: int

    def check(self) -> str:
        """The engine's name; UserError where no bundle could be opened on it."""
        from ..engines.registry import ENGINES, choose_engine

        chosen = choose_engine(self.name, self._options())
        return next(name for name, kind in ENGINES.items() if kind is chosen)

    def open(self, bundle: str) -> Session:
        """The session of ``bundle`` on this engine."""
        from ..session import Session

        session = Session.open(bundle, self.name, self._options(), tell)
        if self.threads > (here := _processors()):
            tell(
                f"--threads {self.threads} on {counted(here, 'processor')}: "
                "threads wait for each other, and every step takes longer"
            )
        return session

    def _options(self) -> EngineOptions:
        from ..engines.registry import EngineOptions

        if self.provider is not None and self.name != "onnxruntime":
            raise UserError("--provider is an ONNX Runtime provider: add --engine onnxruntime")
        return EngineOptions(self.threads, self.provider)


def _processors() -> int:
    """Those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class PolicyChoice:
    """``--policy``, ``--gamma``, ``--block``, ``--tau``, ``--min-prefix``, None where the bundle's
    own default holds; ``--objective``."""

    name: str | None
    gamma: int | None
    block: NumberOrAuto | None
    tau: float | None
    min_prefix: NumberOrAuto | None
    objective: Objective = "speed"

    def of(self, session: Session) -> Policy:
        return session.policy(
            self.name,
            self.gamma,
            block=self.block,
            tau=self.tau,
            min_prefix=self.min_prefix,
            objective=self.objective,
        )


def choices(
    name: str,
    gammas: Sequence[int],
    blocks: Sequence[NumberOrAuto],
    tau: float | None,
    min_prefix: NumberOrAuto | None,
    objective: Objective = "speed",
) -> list[PolicyChoice]:
    """Policy ``name`` with each of the settings that it has; the objective where one is auto."""
    own = SETTINGS[name]
    return [
        PolicyChoice(
            name,
            gamma,
            block,
            tau if "tau" in own else None,
            min_prefix if "min_prefix" in own else None,
            objective
            if "auto" in (block, min_prefix if "min_prefix" in own else None)
            else "speed",
        )
        for gamma in dict.fromkeys((gammas if "gamma" in own else ()) or (None,))
        for block in dict.fromkeys((blocks if "block" in own else ()) or (None,))
    ]


def check_objective(
    objective: Objective,
    blocks: Sequence[NumberOrAuto],
    min_prefix: NumberOrAuto | None,
    energy: str,
) -> None:
    """Raises UserError for joules to be saved where nothing is chosen, or no sensor may tell."""
    if objective == "energy" and energy == "off":
        raise UserError(
            "--objective energy goes by what a power sensor tells, and --energy off has none: "
            "leave one of them out"
        )
    if objective == "energy" and "auto" not in (*blocks, min_prefix):
        raise UserError(
            "--objective energy is of --block auto and --min-prefix auto alone: add --block auto"
        )


@dataclass(frozen=True)
class DecodingChoice:
    """``--policy`` and its settings, ``--context``, ``--temperature``, ``--top-k``, ``--top-p``,
    ``--seed``."""

    policy: PolicyChoice
    context: int | None
    sampling: SamplingParams

    def decoder(self, session: Session) -> Decoder:
        policy = self.policy.of(session)
        return session.decoder(policy, sampling=self.sampling, context=self.context)


def engine_options(function: Function) -> Function:
    """Adds the options of :class:`EngineChoice`; the verb takes it as ``engine``."""

    @wraps(function)
    def gather(*, engine: str, provider: str | None, threads: int, **rest: Any) -> Any:
        return function(engine=EngineChoice(engine, provider, threads), **rest)

    return _with_options(
        gather,
        click.option(
            "--engine",
            default="auto",
            show_default=True,
            metavar="NAME",
            help="auto, tensorrt, cuda, cpu or onnxruntime; `doctor` tells what works here.",
        ),
        click.option(
            "--provider",
            metavar="NAME",
            help="Execution provider of --engine onnxruntime, such as CUDAExecutionProvider.",
        ),
        click.option(
            "--threads",
            type=click.IntRange(0),
            default=0,
            metavar="N",
            help="Threads of the engine; 0, the default, is one a processor.",
        ),
    )


def policy_options(function: Function) -> Function:
    """Adds the options of :class:`PolicyChoice`; the verb takes it as ``policy``."""

    @wraps(function)
    def gather(
        *,
        policy: str | None,
        gamma: int | None,
        block: NumberOrAuto | None,
        tau: float | None,
        min_prefix: NumberOrAuto | None,
        objective: Objective,
        **rest: Any,
    ) -> Any:
        choice = PolicyChoice(policy, gamma, block, tau, min_prefix, objective)
        return function(policy=choice, **rest)

    return _with_options(
        gather,
        click.option(
            "--policy",
            type=click.Choice(POLICIES),
            help="ar: a token at a time. nested: draft on the base plane, verify on both. "
            "confidence, speculative, hybrid: draft blocks of tokens; commit those the model is "
            "sure of, verify all, or verify where it is not sure of enough [default: the "
            "bundle's].",
        ),
        gamma_option(),
        block_option(),
        threshold_options,
        objective_option,
    )


class FiniteRange(click.FloatRange):
    """A number from ``min`` to ``max``. click's own range lets nan through, and inf where an end is
    open."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number to count with", param, ctx)
        return number


class NumberOrAutoType(click.ParamType):
    """A number of 1 or more, or ``auto``."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NumberOrAuto:
        if value == "auto":
            return "auto"
        try:
            number: int = Count.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither auto nor a whole number of 1 or more", param, ctx)
        return number


def prompts_option(*, required: bool = False) -> Callable[[Any], Any]:
    """``--prompts``, as the argument ``prompt_file``."""
    return click.option(
        "--prompts",
        "prompt_file",
        metavar="FILE",
        type=click.Path(),
        required=required,
        help='A prompt a line; in a .jsonl, objects with "prompt".',
    )


def policies_option(verb: str) -> Callable[[Any], Any]:
    """``--policy``, as the argument ``names``: those to ``verb``."""
    return click.option(
        "--policy",
        "names",
        multiple=True,
        type=click.Choice(POLICIES),
        help=f"Policy to {verb}; may be repeated [default: all that the bundle has].",
    )


def gamma_option(*name: str, multiple: bool = False) -> Callable[[Any], Any]:
    """``--gamma``, as the argument ``name``."""
    return click.option(
        "--gamma",
        *name,
        type=Count,
        multiple=multiple,
        metavar="N",
        help=f"Drafts an iteration of policy nested{_COMPARE * multiple} [default: the bundle's].",
    )


def block_option(*name: str, multiple: bool = False) -> Callable[[Any], Any]:
    """``--block``, as the argument ``name``."""
    return click.option(
        "--block",
        *name,
        type=NumberOrAutoType(),
        multiple=multiple,
        metavar="N|auto",
        help="Tokens of a draft block, of policies confidence, speculative and hybrid"
        f"{_COMPARE * multiple} [default: the bundle's].",
    )


def tau_option(function: Function) -> Function:
    return click.option(
        "--tau",
        type=float,
        metavar="P",
        help="Probability from which on policies confidence and hybrid are sure of a draft "
        "[default: the bundle's].",
    )(function)


def min_prefix_option(*name: str, multiple: bool = False) -> Callable[[Any], Any]:
    """``--min-prefix``, as the argument ``name``."""
    return click.option(
        "--min-prefix",
        *name,
        type=NumberOrAutoType(),
        multiple=multiple,
        metavar="N|auto",
        help="Shortest run of sure drafts that policy hybrid commits unverified; auto: the best by "
        f"what steps cost on this machine{_COMPARE * multiple} [default: the bundle's; of --block "
        "auto, auto].",
    )


def objective_option(function: Function) -> Function:
    return click.option(
        "--objective",
        type=click.Choice(["speed", "energy"]),
        default="speed",
        show_default=True,
        help="What --block auto and --min-prefix auto save: time, or joules by what steps draw "
        "here, which is measured once.",
    )(function)


def threshold_options(function: Function) -> Function:
    """Adds ``tau`` and ``min_prefix``; None where the bundle's own default holds."""
    return _with_options(function, tau_option, min_prefix_option())


def decoding_options(function: Function) -> Function:
    """Adds the options of :class:`DecodingChoice`; the verb takes it as ``decoding``."""

    @wraps(function)
    def gather(
        *,
        policy: PolicyChoice,
        context: int | None,
        temperature: float,
        top_k: int,
        top_p: float,
        seed: int | None,
        **rest: Any,
    ) -> Any:
        from ..decode.sampling import SamplingParams

        sampling = SamplingParams(temperature, top_k, top_p, seed)
        if temperature == 0 and (top_k > 0 or top_p < 1):
            raise UserError(
                "--top-k and --top-p have no effect at temperature 0, which takes the most likely "
                "token: add --temperature, or leave them out"
            )
        return function(decoding=DecodingChoice(policy, context, sampling), **rest)

    return _with_options(
        policy_options(gather),
        click.option(
            "--context",
            type=click.IntRange(2),
            metavar="N",
            help="Tokens that prompt and reply may have together [default: the bundle's].",
        ),
        click.option(
            "--temperature",
            type=float,
            default=0.0,
            show_default=True,
            metavar="T",
            help="0 takes the most likely token.",
        ),
        click.option(
            "--top-k",
            type=int,
            default=0,
            metavar="K",
            help="Sample from the K most likely tokens [default: all].",
        ),
        click.option(
            "--top-p",
            type=float,
            default=1.0,
            metavar="P",
            help="Sample from the fewest tokens of probability P together [default: 1].",
        ),
        click.option(
            "--seed",
            type=int,
            metavar="N",
            help="Makes sampling repeatable [default: a new one each reply, which is told].",
        ),
    )


def max_new_tokens_option(default: int) -> Callable[[Function], Function]:
    return click.option(
        "--max-new-tokens",
        type=Count,
        default=default,
        show_default=True,
        metavar="N",
        help="Longest reply, in tokens.",
    )


def stop_option(function: Function) -> Function:
    return click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="End the reply before this text; may be repeated.",
    )(function)


def energy_option(function: Function) -> Function:
    return click.option(
        "--energy",
        metavar="auto|off|SOURCE",
        default="auto",
        show_default=True,
        help="Power sensor that measures joules (jtop, ina3221, tegrastats, nvml, rapl); auto: the "
        "first that works, if any does.",
    )(function)


def bundle_argument(function: Function) -> Function:
    return click.argument("bundle", type=click.Path())(function)


def _with_options(function: Any, *options: Callable[[Any], Any]) -> Any:
    for option in reversed(options):
        function = option(function)
    return function
