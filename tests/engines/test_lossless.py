"""The promise of the project, at engine level: in the verify role a row has the same bits whatever
the window around it, so self-speculation returns exactly the autoregressive tokens.

The expected bits are those of steps of one token, with all positions before it in history.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import AutoRegressive, NestedSelfSpeculation, Policy
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines import cpu_library
from bitmtp_edge.engines.base import Engine, ReplayState, check_window
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.text.tokenizer import Tokenizer

from .steps import Tree, output_bits, step

LENGTH = 150  # past the first chunk of 128
VOCABULARY = 301
TOKENS: list[int] = np.random.default_rng(11).integers(0, VOCABULARY, LENGTH).tolist()
GAMMAS = (1, 2, 3, 4)

Bits = tuple[bytes, ...]


@pytest.fixture(scope="module", params=["tiny_bundle", "fp16_bundle"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found: Bundle = request.getfixturevalue(request.param)
    return found


@cache
def expected(bundle: Bundle) -> list[Bits]:
    """Bits of every position's row: id, probability, logits, and its K and V of every layer."""
    with CpuEngine(bundle, threads=1, isa="scalar", keep_tensors=True) as engine:
        rows = []
        for position in range(LENGTH):
            output = step(engine, TOKENS[: position + 1], position)
            rows.append(row_bits(engine, output_bits(output, 0), 0))
            engine.promote([0], position)
        return rows


def row_bits(engine: Engine, output: Bits, slot: int) -> Bits:
    """An output row's bits with those of the slot's new KV rows."""
    tensors = engine.tensors()
    assert tensors is not None
    new = [name for name in sorted(tensors) if ".new_" in name]
    assert new
    return (*output, *(tensors[name][slot].tobytes() for name in new))


def check(engine: Engine, want: Sequence[Bits], start: int, rows: int, width: int) -> None:
    """The causal window of ``rows`` tokens from ``start``, in ``width`` slots."""
    output = step(engine, TOKENS[: start + rows], start, width=width)
    for slot in range(rows):
        got = row_bits(engine, output_bits(output, slot), slot)
        assert got == want[start + slot], f"position {start + slot}, slot {slot} of {width}"


def fill(engine: Engine, rows: int) -> None:
    """History rows 0 .. rows-1, by steps of uneven widths."""
    at = 0
    for width in itertools.cycle((1, 17, 5, 9, 2, 3)):
        if at >= rows:
            return
        taken = min(width, rows - at)
        step(engine, TOKENS[: at + taken], at, logits=False)
        engine.promote(range(taken), at)
        at += taken


# ---- rows ----------------------------------------------------------------------------------------


def test_every_split_between_history_and_window(bundle: Bundle) -> None:
    """Each position in every slot that a width has, the next slots hidden by the mask."""
    want = expected(bundle)
    with CpuEngine(bundle, keep_tensors=True) as engine:
        fill(engine, LENGTH)
        for start in range(LENGTH):
            for width in bundle.replay.verify_widths:
                # Narrow windows everywhere, the widest where they cross an edge or at random.
                if width <= 17 or start % 29 == 0:
                    check(engine, want, start, min(width, LENGTH - start), width)


def test_every_thread_count_and_instruction_set(bundle: Bundle) -> None:
    want = expected(bundle)
    for isa, threads in itertools.product(cpu_library.isas(), (1, 2, 3)):
        with CpuEngine(bundle, threads=threads, isa=isa, keep_tensors=True) as engine:
            fill(engine, 127)
            for start, rows, width in (
                (0, 128, 128),
                (3, 120, 128),
                (97, 33, 33),
                (111, 17, 17),
                (126, 5, 9),
                (127, 1, 1),
                (127, 2, 3),
                (127, 17, 17),
            ):
                check(engine, want, start, rows, width)


def test_segments(bundle: Bundle) -> None:
    want = expected(bundle)
    with CpuEngine(bundle, keep_tensors=True) as engine:
        fill(engine, 130)
        for segment in bundle.replay.segments:
            engine.grow(segment, 130)
            for start in (0, 100, 127, 128, 130):
                check(engine, want, start, 17, 17)


@pytest.mark.parametrize("start", [0, 60, 124, 128, 140])
@pytest.mark.parametrize("slots", [7, 33, 70])
def test_trees(bundle: Bundle, start: int, slots: int) -> None:
    """The true tokens lie on one path of a random tree; every other slot holds something else."""
    want = expected(bundle)
    random = np.random.default_rng(1000 * start + slots)
    parents: list[int] = []
    truth = [-1]
    for slot in range(slots):
        if slot % 4 == 0 and len(truth) <= LENGTH - start:  # one more token of the true path
            parents.append(truth[-1])
            truth.append(slot)
        else:
            parents.append(int(random.integers(-1, slot)))
    tree = Tree(tuple(parents))
    ids = random.integers(0, VOCABULARY, slots)
    for depth, slot in enumerate(truth[1:]):
        ids[slot] = TOKENS[start + depth]
    window = tree.window(ids.tolist(), start)
    with CpuEngine(bundle, keep_tensors=True) as engine:
        fill(engine, start)
        check_window(state := ReplayState(slots, slots, engine.segment, "verify", True), window)
        output = engine.replay(state, window)
        for depth, slot in enumerate(truth[1:]):
            assert row_bits(engine, output_bits(output, slot), slot) == want[start + depth]


# ---- tokens --------------------------------------------------------------------------------------


def decode(
    engine: Engine, bundle: Bundle, policy: Policy, prompt: list[int], new: int
) -> list[int]:
    decoder = Decoder(engine, ReplayStates.of(bundle), policy, check=True)
    decoder.prefill(prompt)
    for _ in decoder.iterations(len(prompt) + new):
        pass
    return decoder.prefix.tokens[len(prompt) :]


def prompts(seed: int, count: int, longest: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, count)
    return [random.integers(0, VOCABULARY, length).tolist() for length in lengths]


def test_nested_decoding_is_autoregressive_decoding(bundle: Bundle) -> None:
    """50 random prompts, short ones and some past the first chunk."""
    cases = prompts(3, 44, 40) + [TOKENS[:length] for length in (120, 125, 127, 128, 129, 140)]
    with CpuEngine(bundle) as engine:
        for index, prompt in enumerate(cases):
            want = decode(engine, bundle, AutoRegressive(), prompt, 16)
            assert len(want) == 16
            policy = NestedSelfSpeculation(GAMMAS[index % 4])
            assert decode(engine, bundle, policy, prompt, 16) == want, (index, policy)


def test_nested_decoding_with_kv4_drafts_and_a_growing_segment(tiny_bundle: Bundle) -> None:
    """Drafts from the base plane of the KV, across the end of the first segment."""
    random = np.random.default_rng(4)
    prompt = random.integers(0, VOCABULARY, tiny_bundle.replay.segments[0] - 10).tolist()
    with CpuEngine(tiny_bundle) as engine:
        want = decode(engine, tiny_bundle, AutoRegressive(), prompt, 24)
        assert engine.segment == tiny_bundle.replay.segments[1]
    for gamma in GAMMAS:
        with CpuEngine(tiny_bundle) as engine:
            policy = NestedSelfSpeculation(gamma, kv4_from_segment=512, recent_n=16)
            assert decode(engine, tiny_bundle, policy, prompt, 24) == want
            assert engine.segment == tiny_bundle.replay.segments[1]


TEXTS = [
    f"{opening} {subject}"
    for opening in (
        "Write one sentence about",
        "Explain in simple words",
        "What is the best thing about",
        "List three facts about",
        "Once upon a time there was",
    )
    for subject in (
        "the sea.",
        "a red bicycle.",
        "17 + 25 = ?",
        "def add(a, b):",
        "the moon and the tides.",
        "Zürich in winter.",
        "bread, butter and salt.",
        "an old clock.",
        "rain on a tin roof.",
        "prime numbers.",
    )
]


def test_the_sample_model_on_fifty_prompts(smollm2_bundle: Bundle) -> None:
    assert len(set(TEXTS)) == 50
    tokenizer = Tokenizer.load(smollm2_bundle.file("tokenizer.json"))
    accepted = 0
    with CpuEngine(smollm2_bundle) as engine:
        for index, text in enumerate(TEXTS):
            prompt = tokenizer.encode(text)
            want = decode(engine, smollm2_bundle, AutoRegressive(), prompt, 12)
            decoder = Decoder(
                engine, ReplayStates.of(smollm2_bundle), NestedSelfSpeculation(GAMMAS[index % 4])
            )
            decoder.prefill(prompt)
            accepted += sum(it.accepted for it in decoder.iterations(len(prompt) + 12))
            assert decoder.prefix.tokens[len(prompt) :] == want, text
    assert accepted > 100  # else nothing was speculated
