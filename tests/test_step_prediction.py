"""step_prediction: what it makes of the machine that it was fitted on, and how it scales."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.export.synthetic import describe_synthetic
from bitmtp_edge.profiles import PowerMode, load_profile
from bitmtp_edge.step_prediction import BANDWIDTH_SHARE, StepPrediction

# An H200 reads 4.6 TB/s, of which the share that is assumed for boards is no part.
H200 = PowerMode("H200", (), (), 1980, 132, 4600 / BANDWIDTH_SHARE.value)
# Microseconds of steps on it, docs/benchmarks.md: AR, a verify step of 9, a draft step of 15.
MEASURED = {"bonsai-1.7b": (594, 1.47, 1.54), "bitnet-2b": (758, 1.43, 1.51)}


@pytest.mark.parametrize("name", MEASURED)
def test_it_gives_the_steps_that_it_was_fitted_on(name: str) -> None:
    ar_us, verify, draft = MEASURED[name]
    steps = StepPrediction(describe_synthetic(name), H200)
    ar = steps.seconds("verify", 1, 1, 256)
    assert 1e6 * ar == pytest.approx(ar_us, rel=0.05)
    assert steps.seconds("verify", 9, 9, 256) / ar == pytest.approx(verify, rel=0.1)
    assert steps.seconds("draft", 15, 8, 256) / ar == pytest.approx(draft, rel=0.1)


def test_a_model_that_it_was_not_fitted_on() -> None:
    """Llama-2-7B in W8A8, whose AR step takes 2,115 us: within a sixth."""
    steps = StepPrediction(describe_synthetic("llama-2-7b"), H200)
    assert 1e6 * steps.seconds("verify", 1, 1, 256) == pytest.approx(2115, rel=1 / 6)


@pytest.fixture
def mode() -> PowerMode:
    return load_profile("orin-nx-16gb").modes[0]


def test_what_makes_a_step_faster(tiny_bundle: Bundle, mode: PowerMode) -> None:
    def of(**changes: float) -> float:
        changed = replace(mode, **changes)  # type: ignore[arg-type]
        return StepPrediction(tiny_bundle, changed).seconds("verify", 9, 9, 1000)

    assert of(bandwidth_gb_s=2 * mode.bandwidth_gb_s) < of()
    assert of(gpu_mhz=2 * mode.gpu_mhz) < of()
    assert of(multiprocessors=64) == of(multiprocessors=128)
    wide = [
        StepPrediction(tiny_bundle, replace(mode, multiprocessors=count)).seconds(
            "verify", 128, 128, 0
        )
        for count in (1, 2)
    ]
    assert wide[0] > wide[1]  # few of them: unpacking is what takes longest


def test_what_makes_a_step_slower(tiny_bundle: Bundle, mode: PowerMode) -> None:
    steps = StepPrediction(tiny_bundle, mode)
    one = steps.seconds("verify", 1, 1, 0)
    assert steps.seconds("verify", 1, 1, 1000) > one
    assert steps.seconds("verify", 2, 1, 0) > one
    assert steps.seconds("draft", 1, 1, 0) < one  # one plane of two


def test_no_step_is_faster_than_its_bytes(mode: PowerMode) -> None:
    for name in MEASURED:
        steps = StepPrediction(describe_synthetic(name), mode)
        for width in (1, 9, 128):
            assert steps.seconds("verify", width, width, 512) > steps.least_seconds("verify", 512)
