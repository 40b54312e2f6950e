"""``--objective`` of ``run`` and ``bench``."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge import session, step_power
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.costs import CostTable
from bitmtp_edge.decode.energy_costs import PowerTable
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine
from bitmtp_edge.power import metering

from ..decode.trace_engine import cost_table, power_table
from ..power.fake_metering import FakeMetering
from .conftest import SHORT, Verb

ENERGY = ("--objective", "energy")
AUTO = ("--policy", "speculative", "--block", "auto", *ENERGY)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide steps take little longer and draw much more: joules say ar."""

    def costs(
        bundle: Bundle, engine: Engine, states: ReplayStates, *rest: object, **more: object
    ) -> CostTable:
        return cost_table(states, lambda width: 1 + 0.01 * width)

    def power(bundle: Bundle, engine: Engine, states: ReplayStates, *rest: object) -> PowerTable:
        return power_table(states, lambda width: 5.0 * width**2)

    monkeypatch.setattr(session, "costs_of", costs)
    monkeypatch.setattr(session, "power_of", power)


def test_run_tells_objective_choices_and_costs(verb: Verb, block_bundle: Path, known: None) -> None:
    for objective in ("speed", "energy"):
        settings = verb(
            "run",
            block_bundle,
            "--prompt",
            "the hat",
            *AUTO[:4],
            "--objective",
            objective,
            "--json",
        ).json["policy_settings"]
        assert settings["objective"] == objective
        joules = {name for entry in settings["costs"] for name in entry if name.endswith("_mj")}
        assert bool(joules) == (objective == "energy")
        blocks = {choice["block"] for choice in settings["chosen"]}
        assert (blocks == {0}) == (objective == "energy")


def test_bench_gives_it_to_what_is_auto(
    verb: Verb, block_bundle: Path, prompts: Path, known: None
) -> None:
    some = ("--policy", "ar", "--block", 2, *AUTO)
    report = verb("bench", block_bundle, "--prompts", prompts, *some, *SHORT, "--json").json
    objectives = [policy["settings"].get("objective") for policy in report["policies"]]
    assert objectives == [None, None, "energy"]
    assert report["policies"][-1]["same_tokens_as_ar"] is True


def test_without_a_power_source_energy_is_refused(
    verb: Verb, block_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in ("METER_ORDER_GPU", "METER_ORDER_CPU"):
        monkeypatch.setattr(step_power, order, ())
    monkeypatch.setattr(
        session, "costs_of", lambda *rest, **more: cost_table(rest[2], lambda width: 1.0)
    )
    refused = verb("run", block_bundle, "--prompt", "x", *AUTO).refused()
    assert "no power source works here" in refused and "take the objective speed" in refused


@pytest.mark.parametrize("name", ["run", "bench", "profile"])
def test_energy_without_a_sensor_that_may_tell_is_refused(
    name: str, verb: Verb, block_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "costs_of", lambda *rest: cost_table(rest[2], lambda width: 1.0))
    given = ("--prompt", "x") if name == "run" else ("--prompts", prompts)
    assert "--energy off" in verb(name, block_bundle, *given, *AUTO, "--energy", "off").refused()


@pytest.mark.parametrize("name", ["run", "bench"])
def test_what_steps_draw_is_by_the_source_of_the_run(
    name: str, verb: Verb, block_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def power(bundle: Bundle, engine: Engine, states: ReplayStates, *rest: object) -> PowerTable:
        seen.extend(rest[1:])
        return power_table(states, lambda width: 5.0)

    monkeypatch.setattr(session, "costs_of", lambda *rest: cost_table(rest[2], lambda width: 1.0))
    monkeypatch.setattr(session, "power_of", power)
    monkeypatch.setattr(metering.Metering, "open", lambda *rest, **more: FakeMetering())
    given = ("--prompt", "x") if name == "run" else ("--prompts", prompts, *SHORT)
    assert verb(name, block_bundle, *given, *AUTO, "--energy", "ina3221").code == 0
    assert seen == ["fake", Path("/")]


@pytest.mark.parametrize("rest", [(), ("--block", 2), ("--policy", "ar"), ("--policy", "hybrid")])
def test_energy_without_anything_auto_is_refused(
    rest: tuple[object, ...], verb: Verb, block_bundle: Path, prompts: Path
) -> None:
    refused = verb("run", block_bundle, "--prompt", "x", *rest, *ENERGY).refused()
    assert "--objective energy is of block auto and min-prefix auto alone" in refused
    refused = verb("bench", block_bundle, "--prompts", prompts, *rest, *ENERGY).refused()
    assert "--objective energy is of --block auto and --min-prefix auto alone" in refused
