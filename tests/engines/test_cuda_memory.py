"""Memory of the CUDA engine: what is shared, what is copied, what outlives what, and that no step
reads what it has not written."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.engines.cuda import CudaEngine
from bitmtp_edge.inspection import kv_buffer_bytes

from .cuda_steps import HISTORY, TOKENS, Open, bits, on_host
from .host_device import HostDevice, HostLibrary
from .poisoned_device import PoisonedGpu, PoisonedHost
from .steps import play, step


def test_a_step_is_two_small_copies_and_a_graph(tiny_bundle: Bundle) -> None:
    device = HostDevice()
    library = HostLibrary(device)
    with CudaEngine(tiny_bundle, device=device, library=library) as engine:
        step(engine, TOKENS[:9], 0, logits=False)
        for _ in range(3):
            before = library.sent, library.fetched
            step(engine, TOKENS[:9], 0, logits=False)
            assert 0 < library.sent - before[0] < 8192
            assert 0 < library.fetched - before[1] < 1024
        assert library.captures == 1
        step(engine, TOKENS[:5], 0, logits=False)
        assert library.captures == 2


def test_states_share_memory(tiny_bundle: Bundle) -> None:
    """One arena, one block of weights, one KV buffer; outputs are a role's own."""
    device = HostDevice()
    with CudaEngine(tiny_bundle, device=device, library=HostLibrary(device)) as engine:
        for rows in (128, 1, 5, 17, 64):
            for role in ("verify", "draft"):
                step(engine, TOKENS[:rows], 0, role=role, logits=False)
        made = [purpose for purpose in device.allocated if "workspace" not in purpose]
        assert made.count("the weights") == 1
        assert made.count("the inputs of a step") == 1
        assert made.count("the outputs of a step") == 2
        assert sum("KV" in purpose for purpose in made) == 1
        assert made.count("the tensors of a step") <= 3  # an empty one, and one a role if it grows


def test_memory_is_what_was_allocated(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as engine, CpuEngine(tiny_bundle, threads=1) as cpu:
        for each in (engine, cpu):
            assert each.memory()["arena"] == each.memory()["workspace"] == 0
            step(each, TOKENS[:9], 0, logits=False)
        told, other = engine.memory(), cpu.memory()
        assert min(told.values()) > 0
        assert told["kv"] == other["kv"] == kv_buffer_bytes(tiny_bundle, engine.segment)
        assert other["weights"] <= told["weights"] < other["weights"] * 1.1  # aligned there
        assert told["device"] >= sum(told.values()) - told["device"]
        assert other.keys() == told.keys() - {"device"}


# ---- poison --------------------------------------------------------------------------------------

Pair = tuple[CudaEngine, CudaEngine, Callable[[], None]]


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def clean_and_poisoned(request: pytest.FixtureRequest, bundle: Bundle) -> Iterator[Pair]:
    """Two engines, and what poisons the scratch memory of the second one."""
    if request.param == "host":
        host = PoisonedHost()
        with (
            on_host(bundle) as clean,
            CudaEngine(bundle, device=host, library=HostLibrary(host)) as poisoned,
        ):
            yield clean, poisoned, host.poison_scratch
    else:
        gpu = PoisonedGpu()
        with CudaEngine(bundle) as clean, CudaEngine(bundle, device=gpu) as poisoned:
            yield clean, poisoned, gpu.poison_scratch


def test_nothing_is_read_before_it_is_written(clean_and_poisoned: Pair, bundle: Bundle) -> None:
    """Neither of fresh memory, nor of an earlier step's; launched and captured, in two segments."""
    *engines, poison = clean_and_poisoned
    for segment in bundle.replay.segments[:2]:
        for engine in engines:
            engine.grow(segment, 0)
            play(engine, TOKENS[:HISTORY])
        shapes = itertools.product(("verify", "draft"), (1, 2, 9, 17, 33), (0, 7), range(3))
        for role, rows, kv4, _ in shapes:
            poison()
            tokens = TOKENS[: HISTORY + rows]
            want, got = (
                bits(step(engine, tokens, HISTORY, role=role, width=rows + 3, kv4_length=kv4))
                for engine in engines
            )
            assert got == want, (segment, role, rows, kv4)


# ---- who else uses the memory --------------------------------------------------------------------


def test_an_output_outlives_later_steps(engine: CudaEngine) -> None:
    """Also one that nobody looked at before."""
    state = ReplayState(5, 5, engine.segment, "verify", logits=True)
    window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
    want = bits(engine.replay(state, window))
    unread = engine.start(state, window)
    step(engine, TOKENS[50:55], 0)
    engine.grow(1024, 0)
    step(engine, TOKENS[60:65], 0)
    gc.collect()
    assert bits(unread) == want


def test_an_output_outlives_its_engine(tiny_bundle: Bundle, opened: Open) -> None:
    with opened(tiny_bundle) as engine:
        state = ReplayState(5, 5, engine.segment, "verify")
        window = causal_window(TOKENS[:5], 0, [], 5, 5, 5)
        want = bits(engine.replay(state, window))
        unread = engine.start(state, window)
    assert bits(unread) == want
    engine.close()


@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared weights"])
def test_steps_of_two_engines_overlap(bundle: Bundle, opened: Open, shared: bool) -> None:
    """Each begins a step before the other's has ended."""
    texts = TOKENS[: HISTORY + 4], TOKENS[100 : 104 + HISTORY]
    want = []
    for text in texts:
        with opened(bundle) as alone:
            play(alone, text[:HISTORY], width=4)
            want.append(bits(step(alone, text, HISTORY, logits=False)))
    with (
        opened(bundle) as one,
        one.beside(CudaEngine) if shared else opened(bundle) as other,
    ):
        both = list(zip((one, other), texts, strict=True))
        for at in range(0, HISTORY + 4, 4):
            outputs = []
            for engine, text in both:
                state = ReplayState(4, 4, engine.segment, "verify")
                window = causal_window(text[: at + 4], at, [], 4, 4, 4)
                outputs.append(engine.start(state, window))
            for engine, _ in both:
                engine.promote(range(4), at)
            gc.collect()
        assert [bits(output) for output in outputs] == want


@pytest.fixture
def restless() -> Iterator[None]:
    """The collector looks at everything all the time, also while a step is captured."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("restless")
def test_collections_between_and_in_captures(bundle: Bundle, opened: Open) -> None:
    """Also of engines that nobody closed and only the collector finds."""
    with opened(bundle) as engine:
        play(engine, TOKENS[:HISTORY])
        for rows in (1, 3, 6):
            lost = opened(bundle)
            bits(step(lost, TOKENS[:rows], 0)), bits(step(lost, TOKENS[:rows], 0))
            circle = [lost]
            circle.append(circle)  # type: ignore[arg-type]
            del lost, circle
            tokens = TOKENS[: HISTORY + rows]
            first, *others = (bits(step(engine, tokens, HISTORY)) for _ in range(4))
            assert others == [first] * 3


@pytest.mark.gpu
def test_memory_that_others_get_is_not_the_engines(bundle: Bundle) -> None:
    """Whatever PyTorch hands out between replays may be written at once."""
    import torch

    with CudaEngine(bundle) as engine:
        play(engine, TOKENS[:HISTORY])
        tokens = TOKENS[: HISTORY + 5]
        want = bits(step(engine, tokens, HISTORY))
        for turn in range(40):
            sizes = [1 << exponent for exponent in range(9, 24, 1 + turn % 3)]
            others = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in sizes]
            assert bits(step(engine, tokens, HISTORY)) == want, turn
            del others[:: 1 + turn % 2]
            gc.collect()
            if turn % 5 == 4:
                torch.cuda.empty_cache()
                engine.grow(bundle.replay.segments[turn // 5 % 2], HISTORY)
