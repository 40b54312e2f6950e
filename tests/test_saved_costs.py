"""Step costs kept between runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge import saved_costs as module
from bitmtp_edge import session as session_module
from bitmtp_edge import step_power
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.adaptive import Adaptive
from bitmtp_edge.decode.costs import STEADY, CostTable, Measurement, StepTime
from bitmtp_edge.decode.energy_costs import PowerTable
from bitmtp_edge.decode.policies import Hybrid
from bitmtp_edge.decode.prices import default_min_prefix
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import Engine
from bitmtp_edge.errors import UserError
from bitmtp_edge.power.metering import Metering
from bitmtp_edge.power.source import Where
from bitmtp_edge.saved_costs import costs_of, power_of
from bitmtp_edge.session import Session

from .decode.trace_engine import cost_table, power_table

MEASURING = "measuring what steps cost here, which takes some seconds"


@pytest.fixture
def bundle(tiny_ternary_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """One that may be written to, and a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(tiny_ternary_bundle.path, tmp_path / "bundle")
    return Bundle.open(tmp_path / "bundle")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[CostTable]:
    """Every table that is measured, of made-up times, each another."""
    tables: list[CostTable] = []

    def measure(engine: Engine, states: ReplayStates) -> Measurement:
        tables.append(cost_table(states, lambda width: 1 + len(tables) + width / 8))
        return Measurement(tables[-1], 1.0)

    monkeypatch.setattr(module, "measure_costs", measure)
    return tables


def costs_and_notices(bundle: Bundle) -> tuple[CostTable, list[str]]:
    notices: list[str] = []
    with Session(bundle, Session.open(bundle.path).engine, notices.append) as session:
        return session.costs, notices


def test_costs_are_measured_once(bundle: Bundle, measured: list[CostTable]) -> None:
    first, notices = costs_and_notices(bundle)
    again, more = costs_and_notices(bundle)
    assert first == again == measured[0]
    assert (len(measured), notices, more) == (1, [MEASURING], [])
    assert [path.name for path in (bundle.path / "engines").rglob("*.json")]
    assert not list((bundle.path / "engines").rglob("*.partial"))


def cost_file(bundle: Bundle) -> Path:
    (path,) = (bundle.path / "engines").rglob("*.json")
    return path


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"measured": 3}', "[" * 100_000, '{"measured": {}, "costs": {}}']
)
def test_a_damaged_file_is_measured_again(
    text: str, bundle: Bundle, measured: list[CostTable]
) -> None:
    costs_and_notices(bundle)
    path = cost_file(bundle)
    path.write_text(text)
    costs, notices = costs_and_notices(bundle)
    assert notices == [f"{path} is damaged: {MEASURING}"]
    assert costs == measured[1]
    assert costs_and_notices(bundle) == (measured[1], [])


def test_times_of_a_busy_machine_are_used_and_not_saved(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    spreads = iter([STEADY + 0.6, STEADY])
    monkeypatch.setattr(
        module,
        "measure_costs",
        lambda engine, states: Measurement(cost_table(states, float), next(spreads)),
    )
    costs, notices = costs_and_notices(bundle)
    assert costs.ar_ms > 0 and notices[0] == MEASURING
    assert len(notices) == 2 and "not saved: runs of one step differ 2.1 times" in notices[1]
    assert not (bundle.path / "engines").exists()
    assert costs_and_notices(bundle) == (costs, [MEASURING])
    assert costs_and_notices(bundle) == (costs, [])


def test_costs_can_be_measured_anew(bundle: Bundle, measured: list[CostTable]) -> None:
    costs_and_notices(bundle)
    with Session.open(bundle.path) as session:
        anew = costs_of(bundle, session.engine, session.states, session.notice, anew=True)
    assert anew == measured[1]
    assert costs_and_notices(bundle) == (anew, [])


@pytest.mark.parametrize(
    "change",
    [
        lambda costs: costs.update(steps=[]),
        lambda costs: costs["steps"].pop(),
        lambda costs: costs["steps"].append(costs["steps"][0]),
        lambda costs: costs["steps"][0].update(role="other"),
        lambda costs: costs["steps"][-1].update(outputs=7),
        *(
            lambda costs, ms=ms: costs["steps"][3].update(short_ms=ms)
            for ms in (0.0, -1.0, 5e-324, float("nan"), float("inf"))
        ),
        lambda costs: costs.update(short=costs["long"]),
        lambda costs: costs.update(long=10**400),
    ],
)
def test_costs_that_cannot_be_are_measured_again(
    change: Callable[[dict[str, Any]], None], bundle: Bundle, measured: list[CostTable]
) -> None:
    costs_and_notices(bundle)
    path = cost_file(bundle)
    value = json.loads(path.read_text())
    change(value["costs"])
    path.write_text(json.dumps(value))
    costs, notices = costs_and_notices(bundle)
    assert notices == [f"{path} is damaged: {MEASURING}"]
    assert costs == measured[1]


@pytest.mark.parametrize("name", ["bundle", "processor", "instructions", "sdk", "power_mode"])
def test_a_file_of_something_else_is_measured_again(
    name: str, bundle: Bundle, measured: list[CostTable]
) -> None:
    costs_and_notices(bundle)
    path = cost_file(bundle)
    value = json.loads(path.read_text())
    value["measured"][name] = "another"
    path.write_text(json.dumps(value))
    costs, notices = costs_and_notices(bundle)
    assert notices == [f"{path} is of another {name}: {MEASURING}"]
    assert costs == measured[1]


def test_threads_have_files_of_their_own(bundle: Bundle, measured: list[CostTable]) -> None:
    from bitmtp_edge.engines.cpu import CpuEngine

    for threads in (1, 2, 1):
        with Session(bundle, CpuEngine(bundle, threads=threads)) as session:
            assert session.costs == measured[threads - 1]
    assert len(measured) == 2


def test_a_bundle_that_cannot_be_written_to_leaves_the_cache(
    bundle: Bundle, measured: list[CostTable]
) -> None:
    (bundle.path / "engines").write_text("in the way")
    costs, notices = costs_and_notices(bundle)
    assert costs_and_notices(bundle) == (costs, [])
    assert (len(measured), notices) == (1, [MEASURING])
    assert list((bundle.path.parent / "cache" / "bitmtp-edge").rglob("costs-*.json"))


def test_where_nothing_can_be_written_it_goes_on(bundle: Bundle, measured: list[CostTable]) -> None:
    (bundle.path / "engines").write_text("in the way")
    (bundle.path.parent / "cache").write_text("in the way")
    costs_and_notices(bundle)
    assert costs_and_notices(bundle) == (measured[1], [MEASURING])


def test_a_user_without_a_home_has_no_cache(
    bundle: Bundle, measured: list[CostTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    (bundle.path / "engines").write_text("in the way")
    costs_and_notices(bundle)
    assert costs_and_notices(bundle) == (measured[1], [MEASURING])


def test_a_relative_cache_folder_is_ignored(
    bundle: Bundle, measured: list[CostTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    (bundle.path / "engines").write_text("in the way")
    costs_and_notices(bundle)
    assert not (tmp_path / "here").exists()
    assert list((tmp_path / "home" / ".cache" / "bitmtp-edge").rglob("costs-*.json"))


def test_costs_change_no_policy_unasked(bundle: Bundle, measured: list[CostTable]) -> None:
    with Session.open(bundle.path) as session:
        before = [session.policy(name) for name in ("confidence", "speculative", "hybrid")]
        assert before[-1] == Hybrid(4, 0.9, bundle.decoding.min_prefix or 0)
        assert not measured
        assert session.costs == measured[0]
    with Session.open(bundle.path) as session:
        assert [session.policy(name) for name in ("confidence", "speculative", "hybrid")] == before


def test_a_min_prefix_of_auto_is_the_best_by_what_steps_cost(
    bundle: Bundle, measured: list[CostTable]
) -> None:
    with Session.open(bundle.path) as session:
        for block in (None, 2):
            policy = session.policy("hybrid", block=block, min_prefix="auto")
            fixed = Hybrid(block or 4, 0.9, 1)
            best = default_min_prefix(fixed, measured[0], session.states)
            assert policy == replace(fixed, min_prefix=best)
            assert policy.settings["min_prefix"] == best
        chosen = session.policy("hybrid", block="auto", min_prefix="auto")
        assert chosen.settings["min_prefix"] == "auto"
        fixed_prefix = session.policy("hybrid", block="auto", min_prefix=3)
        assert fixed_prefix.settings["min_prefix"] == 3


def test_a_session_serves_blocks_of_auto(bundle: Bundle, measured: list[CostTable]) -> None:
    with Session.open(bundle.path) as session:
        for name in ("speculative", "confidence", "hybrid"):
            policy = session.policy(name, block="auto")
            assert isinstance(policy, Adaptive)
            assert (policy.name, policy.costs) == (name, measured[0])
        ids = session.prompt_ids("the hat")
        ar = session.reply(session.decoder(session.policy("ar")), ids, 40)
        auto = session.decoder(session.policy("speculative", block="auto"))
        assert session.reply(auto, ids, 40).token_ids == ar.token_ids


def test_costs_are_measured_on_a_real_engine(bundle: Bundle) -> None:
    with Session.open(bundle.path) as session:
        costs = costs_of(bundle, session.engine, session.states, lambda line: None)
    assert all(step.short_ms > 0 and step.long_ms > 0 for step in costs.steps)
    assert all(isinstance(step, StepTime) for step in costs.steps)


POWERED = "measuring what steps draw here, once for this machine and power mode: about 9 s, by fake"


@pytest.fixture
def powered(monkeypatch: pytest.MonkeyPatch, measured: list[CostTable]) -> list[PowerTable]:
    """Every power table that is measured, of made-up watts, each another."""
    tables: list[PowerTable] = []

    class Fake:
        def __init__(self, engine: Engine, where: Where, name: str = "auto") -> None:
            self.name = "fake" if name == "auto" else name
            self.root = where.root

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *exception: object) -> None:
            pass

    def measure(engine: Engine, states: ReplayStates, source: Fake) -> PowerTable:
        assert source.root.is_absolute()
        table = power_table(states, lambda width: 5.0 + len(tables) + width)
        tables.append(replace(table, source=source.name))
        return tables[-1]

    monkeypatch.setattr(step_power, "open_source_of", Fake)
    monkeypatch.setattr(step_power, "measuring_seconds", lambda states, source: 9.1)
    monkeypatch.setattr(step_power, "measure_power", measure)
    return tables


def power_and_notices(bundle: Bundle) -> tuple[PowerTable, list[str]]:
    notices: list[str] = []
    with Session(bundle, Session.open(bundle.path).engine, notices.append) as session:
        return session.power, notices


def test_power_is_measured_once_beside_the_times(
    bundle: Bundle, powered: list[PowerTable], measured: list[CostTable]
) -> None:
    assert power_and_notices(bundle) == (powered[0], [POWERED])
    costs_and_notices(bundle)
    assert power_and_notices(bundle) == (powered[0], [])
    names = sorted(path.name for path in (bundle.path / "engines").rglob("*.json"))
    assert [name.partition("-")[0] for name in names] == ["costs", "power"]
    assert (len(powered), len(measured)) == (1, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.update(schema=1), "of another schema"),
        (lambda file: file["measured"].update(processor="another"), "of another processor"),
        (lambda file: file["measured"].update(power_mode="30W"), "of another power_mode"),
        (lambda file: file["power"]["steps"].pop(), "damaged"),
        (lambda file: file["power"]["steps"].append(file["power"]["steps"][0]), "damaged"),
        *(
            (lambda file, watts=watts: file["power"]["steps"][2].update(watts=watts), "damaged")
            for watts in (0.0, -4.0, float("nan"), float("inf"), None)
        ),
    ],
)
def test_power_that_does_not_hold_here_is_measured_again(
    change: Callable[[dict[str, Any]], None],
    words: str,
    bundle: Bundle,
    powered: list[PowerTable],
) -> None:
    power_and_notices(bundle)
    path = cost_file(bundle)
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    power, notices = power_and_notices(bundle)
    assert power == powered[1]
    assert len(notices) == 1 and notices[0].endswith(f": {POWERED}") and words in notices[0]


def test_steps_power_is_of_the_source_and_root_of_the_run(
    bundle: Bundle, powered: list[PowerTable], tmp_path: Path
) -> None:
    def power(name: str, root: Path = Path("/")) -> tuple[PowerTable, list[str]]:
        notices: list[str] = []
        engine = Session.open(bundle.path).engine
        table = power_of(bundle, engine, ReplayStates.of(bundle), notices.append, name, root)
        return table, notices

    assert power("jtop") == (powered[0], [POWERED.replace("fake", "jtop")])
    assert power("jtop") == power("auto") == (powered[0], [])
    table, (told,) = power("rapl")
    assert table.source == "rapl" and "is of another power source: " in told
    table, (told,) = power("rapl", tmp_path)
    assert table == powered[2] and "is of another root: " in told
    with pytest.raises(UserError, match=r"the power sensor is off \(--energy off\)"):
        power("off")


def test_a_session_takes_the_source_of_its_meter(
    bundle: Bundle, powered: list[PowerTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []

    class Opened(Metering):
        source = "jtop"  # type: ignore[assignment]

    def opened(source: str, where: Where, on_gpu: bool) -> Metering:
        asked.append((source, where.root))
        return Opened(None) if source == "auto" else Metering(None, "off")

    monkeypatch.setattr(Metering, "open", opened)
    with Session.open(bundle.path) as session:
        session.open_metering("auto", tmp_path)
        assert session.power.source == "jtop"
        session.open_metering("off")
        with pytest.raises(UserError, match="sensor is off"):
            _ = session.power
    assert asked == [("auto", tmp_path), ("off", Path("/"))]


def test_each_power_mode_has_files_of_its_own(
    bundle: Bundle,
    powered: list[PowerTable],
    measured: list[CostTable],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(2):
        with Session.open(bundle.path) as session:
            for mode in ("MAXN SUPER", "15W", "MAXN SUPER"):
                for place in (module, session_module):
                    monkeypatch.setattr(place, "power_mode", lambda root, mode=mode: mode)
                index = int(mode == "15W")
                assert (session.power, session.costs) == (powered[index], measured[index])
    assert (len(powered), len(measured)) == (2, 2)
    names = {path.name for path in (bundle.path / "engines").rglob("*.json")}
    ends = {name.rpartition("threads-")[2] for name in names}
    assert len(names) == 4 and ends == {"MAXN_SUPER.json", "15W.json"}


def test_a_session_saves_joules_where_that_is_the_objective(
    bundle: Bundle, powered: list[PowerTable], measured: list[CostTable]
) -> None:
    with Session.open(bundle.path) as session:
        speed = session.policy("hybrid", block="auto")
        assert isinstance(speed, Adaptive) and not powered
        energy = session.policy("hybrid", block="auto", objective="energy")
        assert isinstance(energy, Adaptive) and energy.power == powered[0]
        fixed = session.policy("hybrid", min_prefix="auto", objective="energy")
        assert isinstance(fixed, Hybrid)
        best = default_min_prefix(fixed, measured[0], session.states, powered[0])
        assert fixed.min_prefix == best
        ids = session.prompt_ids("the hat")
        ar = session.reply(session.decoder(session.policy("ar")), ids, 40)
        policy = session.policy("speculative", block="auto", objective="energy")
        reply = session.reply(session.decoder(policy), ids, 40)
        assert reply.token_ids == ar.token_ids
        assert reply.policy_settings["objective"] == "energy"
        for name in ("ar", "hybrid"):
            with pytest.raises(UserError, match="of block auto and min-prefix auto alone"):
                session.policy(name, objective="energy")
