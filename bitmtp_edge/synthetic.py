"""What a model of random weights costs here: start-up, memory, every kind of step, and decoding
with drafts whose outcomes a trace dictates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter

import numpy as np

from .bandwidth import Bandwidth, read_bandwidth
from .benchmark import benchmark
from .benchmark_report import BenchReport
from .bundle import WEIGHTS_FILE, Bundle
from .decode.policies import Policy
from .decode.window import causal_window
from .engines.base import Engine, ReplayState
from .inspection import kv_row_bytes, role_weight_bytes
from .session import Session

PROMPTS = 4
PROMPT_TOKENS = 128
HISTORY = 256  # rows behind which steps are measured: the middle of a short reply
STEP_RUNS = 50  # of a kind of step, at most,
STEP_SECONDS = 20.0  # as long as all runs together took less
LEAST_STEP_RUNS = 3


@dataclass(frozen=True)
class StateCost:
    """Steps of one replay state behind ``history`` rows: microseconds from the call to the outputs
    on the host, the median and the first and third quartile of ``runs``.

    bytes_read: weights of the role and stored history. share_of_bandwidth: these over the median,
    in measured read bandwidths.
    """

    role: str
    width: int
    outputs: int
    segment: int
    history: int
    runs: int
    median_us: float
    quartiles_us: tuple[float, float]
    bytes_read: int
    share_of_bandwidth: float


@dataclass(frozen=True)
class Startup:
    """Seconds. bundle_s: the making of the bundle, which a user has once. load_s: opening it, file
    hashes included, and its weights where the engine reads them. first_step_s: the first AR step.
    states_s: the first step of each of the other ``states`` replay states of a segment, with the
    making of its plan or graph."""

    bundle_s: float
    load_s: float
    first_step_s: float
    states_s: float
    states: int


@dataclass(frozen=True)
class Memory:
    """Bytes. held: by what for, as the engine tells once all replay states of a segment have run.
    states: what the device's memory lost to them (captured graphs, and the kernels that they load)
    beyond arena and workspace; None where there is no device that tells."""

    held: dict[str, int]
    states: int | None


@dataclass(frozen=True)
class SyntheticReport:
    """A benchmark of random weights at the sizes of ``shape``. parameters: of the model, a tied
    head once. weights_bytes: of weights.bin. prompt_tokens: of each prompt. bench: decoding."""

    shape: str
    parameters: int
    weights_bytes: int
    engine: str
    device: str | None
    prompt_tokens: int
    startup: Startup
    memory: Memory
    bandwidth: Bandwidth
    states: list[StateCost]
    bench: BenchReport


@dataclass(frozen=True)
class Made:
    """A synthetic bundle that was made and opened: shape and its parameters, and the seconds that
    either took."""

    shape: str
    parameters: int
    bundle_s: float
    load_s: float


def random_prompts(vocab_size: int) -> list[list[int]]:
    """Prompts of random ids, the same ones every time."""
    ids = np.random.default_rng(1).integers(0, vocab_size, (PROMPTS, PROMPT_TOKENS))
    found: list[list[int]] = ids.tolist()
    return found


def measure(
    session: Session,
    made: Made,
    policies: Sequence[Policy],
    *,
    repeat: int,
    max_new_tokens: int,
    runtimes: Mapping[str, Session] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> SyntheticReport:
    """Measures the newly opened ``session`` of a synthetic bundle: no step may have run yet.

    runtimes, advance: as of :func:`benchmark`. Raises UserError for a context that the prompts do
    not fit.
    """
    bundle, engine = session.bundle, session.engine
    segment = engine.segment
    states = [state for state in session.states.all() if state.segment == segment]
    startup, memory = _start(engine, states, made)
    bandwidth = read_bandwidth(engine)
    costs = _state_costs(bundle, engine, states, bandwidth)
    report = benchmark(
        session,
        random_prompts(bundle.model.vocab_size),
        policies,
        repeat=repeat,
        max_new_tokens=max_new_tokens,
        runtimes=runtimes,
        advance=advance,
    )
    return SyntheticReport(
        shape=made.shape,
        parameters=made.parameters,
        weights_bytes=bundle.manifest.files[WEIGHTS_FILE].bytes,
        engine=engine.name,
        device=engine.device,
        prompt_tokens=PROMPT_TOKENS,
        startup=startup,
        memory=memory,
        bandwidth=bandwidth,
        states=costs,
        bench=report,
    )


def _start(engine: Engine, states: Sequence[ReplayState], made: Made) -> tuple[Startup, Memory]:
    """Runs the first step of every state, AR's before all others."""
    first = ReplayState(1, 1, engine.segment, "verify")
    others = [state for state in states if state != first]
    began = perf_counter()
    _step(engine, first, 0)
    ended = perf_counter()
    before = engine.memory()
    for state in others:
        _step(engine, state, 0)
    startup = Startup(
        made.bundle_s, made.load_s, ended - began, perf_counter() - ended, len(others)
    )
    held = engine.memory()
    device = held.pop("device", None)
    graphs = None
    if device is not None:
        shared = sum(held[name] - before[name] for name in held)
        graphs = max(device - before["device"] - shared, 0)
    return startup, Memory(held, graphs)


def _state_costs(
    bundle: Bundle, engine: Engine, states: Sequence[ReplayState], bandwidth: Bandwidth
) -> list[StateCost]:
    """Times every state. They take turns, so that no step finds its weights in a cache, and in
    another order each time, so that none always comes behind the same one."""
    history = min(HISTORY, engine.segment - max(state.width for state in states))
    kv = kv_row_bytes(bundle) * history
    read = {role: role_weight_bytes(bundle, role) + kv for role in ("draft", "verify")}
    seconds: dict[ReplayState, list[float]] = {state: [] for state in states}
    shuffled = np.random.default_rng(2)
    started = perf_counter()
    for run in range(STEP_RUNS):
        if run >= LEAST_STEP_RUNS and perf_counter() - started > STEP_SECONDS:
            break
        for index in shuffled.permutation(len(states)):
            state = states[index]
            began = perf_counter()
            _step(engine, state, history)
            seconds[state].append(perf_counter() - began)
    found = []
    for state, times in seconds.items():
        first, middle, third = quantiles([1e6 * each for each in times], n=4, method="inclusive")
        found.append(
            StateCost(
                state.role,
                state.width,
                state.outputs,
                state.segment,
                history,
                len(times),
                middle,
                (first, third),
                read[state.role],
                1e6 * read[state.role] / middle / bandwidth.bytes_per_s,
            )
        )
    return found


def _step(engine: Engine, state: ReplayState, history: int) -> None:
    tokens = [0] * (history + state.width)
    heads = min(state.outputs, state.width)
    engine.replay(state, causal_window(tokens, history, (), state.width, heads, state.outputs))
