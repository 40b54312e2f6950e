"""The training loop: what it logs and saves, that it goes on exactly where it stopped."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import signal
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.errors import UserError  # noqa: E402
from bitmtp_edge.export.checkpoints import open_checkpoint  # noqa: E402
from bitmtp_edge.export.training import trainer as trainer_module  # noqa: E402
from bitmtp_edge.export.training.log import COLUMNS, Log, plot_losses  # noqa: E402
from bitmtp_edge.export.training.run import train  # noqa: E402
from bitmtp_edge.export.training.trainer import Trainer  # noqa: E402

from .test_saved import hashes  # noqa: E402
from .tiny_runs import LENGTH, Run, alphabet_run  # noqa: E402


def state_of(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(run.folder / "state.pt", weights_only=True)
    return found


def log_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["step"] == expected["step"] and found["recipe"] == expected["recipe"]
    assert found["model"].keys() == expected["model"].keys()
    for name, values in expected["model"].items():
        assert torch.equal(found["model"][name], values), name
    theirs = expected["optimizer"]["state"]
    for index, moments in found["optimizer"]["state"].items():
        for name, values in moments.items():
            assert torch.equal(values, theirs[index][name]), (index, name)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight steps without a break. Read-only."""
    run = alphabet_run(tmp_path_factory.mktemp("straight"), steps=8, texts=80)
    train(run.plan(), "cpu", resume=False)
    return run


def stop_in(monkeypatch: pytest.MonkeyPatch, step: int, method: str, number: int) -> None:
    """Sends this process a signal in the middle of ``method`` of the step after ``step``."""
    owner: Any = Trainer if method == "_forward" else torch.optim.AdamW
    original = getattr(owner, method)

    def stopped(self: Any, *arguments: Any) -> Any:
        stopped.calls += 1  # type: ignore[attr-defined]
        result = original(self, *arguments)
        if stopped.calls == step + 1:  # type: ignore[attr-defined]
            os.kill(os.getpid(), number)
        return result

    stopped.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(owner, method, stopped)


@pytest.mark.parametrize(
    ("method", "done"), [("_forward", 3), ("step", 4)], ids=["before the update", "within it"]
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    method: str, done: int, straight: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alphabet_run(tmp_path, steps=8, texts=80)
    with monkeypatch.context() as patched:
        stop_in(patched, 3, method, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(run.plan(), "cpu", resume=False)
    assert state_of(run)["step"] == done
    with open_checkpoint(run.folder / "model"):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    train(run.plan(), "cpu", resume=True)
    assert_same_state(state_of(run), state_of(straight))
    assert hashes(run.folder / "model") == hashes(straight.folder / "model")


def test_a_killed_run_goes_on_from_what_it_last_saved(
    straight: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alphabet_run(tmp_path, steps=8, texts=80)
    with monkeypatch.context() as patched:
        patched.setattr(trainer_module, "SAVE_SECONDS", 0.0)
        stop_in(patched, 5, "_forward", signal.SIGINT)
        saved = Trainer.save

        def save(self: Trainer) -> None:
            if self.step < 5:  # a killed process saves nothing more
                saved(self)

        patched.setattr(Trainer, "save", save)
        with pytest.raises(KeyboardInterrupt):
            train(run.plan(), "cpu", resume=False)
    assert state_of(run)["step"] == 4
    (run.folder / "state.pt.partial").write_bytes(b"half of it")
    (run.folder / "model.new").mkdir()
    train(run.plan(), "cpu", resume=True)
    assert_same_state(state_of(run), state_of(straight))
    names = sorted(path.name for path in run.folder.iterdir())
    assert names == ["log.csv", "losses.svg", "model", "rows", "state.pt"]


def test_a_finished_run_may_be_resumed(straight: Run, tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=2, texts=80)
    train(run.plan(), "cpu", resume=False)
    before, model = state_of(run), hashes(run.folder / "model")
    shutil.rmtree(run.folder / "model")  # as after a disk that was full
    train(run.plan(), "cpu", resume=True)
    assert_same_state(state_of(run), before)
    assert hashes(run.folder / "model") == model
    assert [row["step"] for row in log_of(run.folder)] == ["1", "2"]


def test_nothing_to_resume(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, texts=80)
    with pytest.raises(UserError, match=r"state.pt does not exist: nothing to resume"):
        train(run.plan(), "cpu", resume=True)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    train(run.plan(), "cpu", resume=False)
    before = hashes(run.folder / "model")
    with pytest.raises(UserError, match=r"holds the state of a run: go on with --resume"):
        train(run.plan(), "cpu", resume=False)
    assert hashes(run.folder / "model") == before and len(log_of(run.folder)) == 1


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no such archive", b"\x80\x02}q\x00."])
def test_a_damaged_state(content: bytes, tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    run.folder.mkdir()
    (run.folder / "state.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"state.pt is damaged \(\w+\)") as caught:
        train(run.plan(), "cpu", resume=True)
    assert "\n" not in str(caught.value)


def test_a_state_of_another_recipe(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=2, texts=80)
    train(run.plan(), "cpu", resume=False)
    run.rewrite("schedule", learning_rate=1e-3)
    with pytest.raises(UserError, match=r"state.pt is of another recipe: schedule.learning_rate"):
        train(run.plan(), "cpu", resume=True)
    run.rewrite("schedule", learning_rate=5e-3)
    with pytest.raises(UserError, match=r"state.pt is of another recipe: schedule.steps was 2"):
        train(run.plan(steps=3), "cpu", resume=True)


# ---- the log -----------------------------------------------------------------------------------


def test_the_log(alphabet: Run) -> None:
    rows = log_of(alphabet.folder)
    assert [int(row["step"]) for row in rows] == [1, 20, 40, 60, 80, 90]
    assert all(tuple(row) == COLUMNS for row in rows)
    for row in rows:
        assert int(row["tokens"]) == int(row["step"]) * 8 * LENGTH
        assert all(float(row[name]) >= 0 for name in COLUMNS if row[name])
        held_out = [row[name] for name in COLUMNS if name.startswith("held_out")]
        assert all(held_out) if row["step"] != "1" else not any(held_out)
    assert float(rows[1]["learning_rate"]) == pytest.approx(5e-3)
    assert float(rows[-1]["learning_rate"]) < 5e-4


def test_the_picture(alphabet: Run) -> None:
    root = ElementTree.parse(alphabet.folder / "losses.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 20


WHAT_WAS_LEARNT = [name for name in COLUMNS if "second" not in name]


@pytest.mark.parametrize(
    ("method", "call", "logged"),
    [("step", 30, ["1", "20"]), ("_forward", 21, ["1"])],
    ids=["between two rows", "in the validation of a row"],
)
def test_the_log_of_a_resumed_run_is_that_of_an_uninterrupted_one(
    method: str, call: int, logged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows after the saved step are dropped; a mean is over all its steps, also those before."""
    run = alphabet_run(tmp_path, steps=46, texts=80)
    with monkeypatch.context() as patched:
        stop_in(patched, call, method, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(run.plan(), "cpu", resume=False)
    first = log_of(run.folder)
    assert [row["step"] for row in first] == logged
    Log(run.folder, int(logged[-1])).add({"step": 40, "seconds": 1.0, "ntp": 99.0})
    train(run.plan(), "cpu", resume=True)
    rows = log_of(run.folder)
    assert rows[: len(first)] == first
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    straight = alphabet_run(tmp_path / "straight", steps=46, texts=80)
    train(straight.plan(), "cpu", resume=False)
    for row, same in zip(rows, log_of(straight.folder), strict=True):
        assert [row[name] for name in WHAT_WAS_LEARNT] == [same[name] for name in WHAT_WAS_LEARNT]


def test_a_log_that_is_none(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    train(run.plan(), "cpu", resume=False)
    (run.folder / "log.csv").write_text("what,is,this\n1,2,3\n")
    with pytest.raises(UserError, match=r"log.csv is damaged: delete it"):
        train(run.plan(), "cpu", resume=True)


def test_half_a_row_of_the_log_is_dropped(tmp_path: Path) -> None:
    log = Log(tmp_path, 0)
    for step in (20, 40):
        log.add({"step": step, "seconds": 1.5, "tokens": step, "ntp": 2.0, "mtp": 3.0})
    text = log.path.read_text()
    log.path.write_text(text + "4")
    Log(tmp_path, 60)
    assert log.path.read_text() == text
    plot_losses(tmp_path)


# ---- what is trained ---------------------------------------------------------------------------


def test_the_mask_is_trained_and_everything_else(straight: Run) -> None:
    from .test_saved import trained_model

    state = state_of(straight)["model"]
    with open_checkpoint(straight.source.path) as checkpoint:
        from bitmtp_edge.export.training.student import build_student, student_config

        recipe = straight.plan().recipe
        config = student_config(checkpoint, recipe.student, LENGTH)
        start = build_student(checkpoint, recipe.student, recipe.objective, config)
    for name, values in start.state_dict().items():
        moved = (state[name] - values).abs()
        assert moved.max() > 0, name
    moved = (state["mask_embedding"] - start.mask_embedding).abs().mean()
    assert moved > start.mask_embedding.abs().mean()
    assert trained_model(straight).embedding.shape == start.embedding.shape


def test_a_loss_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last sound state is kept, and nothing is written over it."""
    run = alphabet_run(tmp_path, steps=30, texts=80)
    monkeypatch.setattr(trainer_module, "SAVE_SECONDS", 0.0)
    forward = Trainer._forward

    def broken(self: Trainer, *arguments: Any) -> Any:
        if self.step == 4:
            with torch.no_grad():
                self.model.final_norm.fill_(float("nan"))
        return forward(self, *arguments)

    monkeypatch.setattr(Trainer, "_forward", broken)
    with pytest.raises(UserError, match=r"the loss is not finite .* lower schedule.learning_rate"):
        train(run.plan(), "cpu", resume=False)
    state = state_of(run)
    assert state["step"] <= 4
    assert all(bool(values.isfinite().all()) for values in state["model"].values())
    with open_checkpoint(run.folder / "model"):
        pass


def test_distillation(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=3, texts=80)
    run.rewrite("objective", distillation=0.5)
    run.values["sources"]["letters"]["distil"] = True
    run.rewrite("schedule")
    train(run.plan(), "cpu", resume=False)
    assert all(float(row["distillation"]) > 0.1 for row in log_of(run.folder))


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = alphabet_run(tmp_path, steps=2, texts=80)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"training stopped: .*state\.pt: No space left on"):
        train(run.plan(), "cpu", resume=False)
    assert not (run.folder / "state.pt").exists()
