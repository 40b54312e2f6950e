"""`bitmtp-edge train` from end to end: a learnt text is decoded several tokens an iteration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.cli import main  # noqa: E402
from bitmtp_edge.export.pipeline import export_bundle  # noqa: E402
from bitmtp_edge.export.training import run as run_module  # noqa: E402
from bitmtp_edge.export.training.trainer import Trainer  # noqa: E402
from bitmtp_edge.session import Session  # noqa: E402

from ..tiny_models import tiny_ternary, write_folder  # noqa: E402
from .test_trainer import log_of  # noqa: E402
from .tiny_runs import (  # noqa: E402
    BLOCK,
    LETTERS,
    SHAPES,
    Run,
    alphabet_run,
    alphabet_texts,
    write_lines,
)

Capture = pytest.CaptureFixture[str]


def arguments(run: Run, *more: str) -> list[str]:
    source = str(run.source.path)
    return ["train", str(run.recipe), "--from", source, "-o", str(run.folder), *more]


def refused(arguments: list[str], told: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(lines) == 1 and told in lines[0]


def test_a_learnt_text_is_decoded_in_blocks(alphabet: Run, tmp_path: Path) -> None:
    """Both losses fall, and what was trained is what the exported bundle decodes by."""
    first, *_, last = log_of(alphabet.folder)
    for name in ("ntp", "mtp", "held_out_ntp", "held_out_mtp"):
        assert float(last[name]) < 0.2 * float(first["ntp"]), name
    assert float(last["held_out_prefix"]) > 0.9 * BLOCK
    bundle = export_bundle(alphabet.folder / "model", tmp_path / "bundle")
    with Session.open(bundle.path, "cpu") as session:
        prompt = session.prompt_ids(LETTERS[4:10], raw=True)
        expected = (LETTERS[10:] + LETTERS * 3)[:32]
        for policy, least in (("ar", 1.0), ("hybrid", 3.0), ("speculative", 3.5)):
            decoder = session.decoder(session.policy(policy))
            reply = session.reply(decoder, prompt, 32)
            assert reply.text == expected
            assert reply.tokens_per_iteration >= least, policy


def test_the_verb(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, steps=2, texts=80)
    assert main(arguments(run, "--prepare")) == 0
    out = capsys.readouterr().out
    assert out.startswith("letters: ") and out.endswith("rows of 64 tokens\n")
    assert main(arguments(run, "--prepare")) == 0 and capsys.readouterr().out == out
    assert not (run.folder / "state.pt").exists()
    assert main(arguments(run, "--device", "cpu")) == 0
    told = capsys.readouterr()
    assert told.out == (
        f"make a bundle of it with  bitmtp-edge export {run.folder / 'model'} -o BUNDLE\n"
    )
    assert "NTP " in told.err and "tokens/s" in told.err
    first = told.err.splitlines()[0]
    assert first.startswith("train: ") and " parameters on cpu in float32, " in first
    assert first.endswith(" 128 slots a row, 512 tokens a step")
    assert main(["export", str(run.folder / "model"), "-o", str(tmp_path / "bundle")]) == 0


def test_an_interrupt_before_the_first_step(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "cached_corpus", interrupted)
    run = alphabet_run(tmp_path, texts=80)
    assert main(arguments(run)) == 130
    told = "bitmtp-edge: training interrupted before its first step: start again\n"
    assert capsys.readouterr().err == told
    assert main(arguments(run, "--prepare")) == 130
    told = "bitmtp-edge: preparing interrupted: rows of the files before are kept\n"
    assert capsys.readouterr().err == told


def test_texts_shorter_than_a_block(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1)
    write_lines(tmp_path / "letters.jsonl", [{"text": "ab"}] * 600)
    assert main(arguments(run)) == 0
    assert log_of(run.folder)[0]["held_out_prefix"] == ""


def test_rows_elsewhere_are_shared_between_runs(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    rows = ["--rows", str(tmp_path / "rows")]
    assert main(arguments(run, "--prepare", *rows)) == 0
    (tmp_path / "letters.jsonl").unlink()
    assert main(arguments(run, "--steps", "2", "--mtp-weight", "0", *rows)) == 0
    assert not (run.folder / "rows").exists()
    assert log_of(run.folder)[0]["mtp"] == "0"


def test_data_elsewhere(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=1, texts=80)
    (tmp_path / "data").mkdir()
    (tmp_path / "letters.jsonl").rename(tmp_path / "data" / "letters.jsonl")
    assert main(arguments(run, "--data", str(tmp_path / "data"))) == 0


def test_a_pruned_student_of_a_teacher_of_its_own(tmp_path: Path) -> None:
    """The teacher has other shapes and another rotary base than the student's checkpoint."""
    run = alphabet_run(tmp_path, steps=2, texts=80, num_hidden_layers=3)
    run.values["sources"]["letters"]["distil"] = True
    run.values["student"] |= {"vocabulary": 280, "layers": 2}
    run.rewrite("objective", distillation=0.5)
    shapes = {**SHAPES, "head_dim": 32, "num_hidden_layers": 4, "rope_theta": 500.0}
    teacher = write_folder(tmp_path / "teacher", "qwen3", seed=5, **shapes)
    assert main(arguments(run, "--teacher", str(teacher.path))) == 0
    assert float(log_of(run.folder)[0]["distillation"]) > 0


def test_going_on_with_a_trained_checkpoint(alphabet: Run, tmp_path: Path) -> None:
    """Its first loss is the last one of the run that it comes from."""
    write_lines(tmp_path / "letters.jsonl", alphabet_texts(80))
    values = {**alphabet.values}
    run = Run(alphabet.source, tmp_path / "recipe.toml", tmp_path / "run", values)
    run.rewrite("schedule", steps=1, warmup=0, learning_rate=1e-6)
    source = str(alphabet.folder / "model")
    assert main(["train", str(run.recipe), "--from", source, "-o", str(run.folder)]) == 0
    before, after = log_of(alphabet.folder)[-1], log_of(run.folder)[0]
    for name in ("held_out_ntp", "held_out_mtp"):
        assert float(after[name]) < float(before[name]) + 0.1


# ---- what is refused, in one line --------------------------------------------------------------


def test_files_that_are_missing(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, texts=80)
    refused(["train", "no.toml", *arguments(run)[2:]], "no.toml: No such file", capsys)
    refused(["train", str(tmp_path), *arguments(run)[2:]], "Is a directory", capsys)
    missing = [*arguments(run)[:3], str(tmp_path / "none"), *arguments(run)[4:]]
    refused(missing, "none: no such file or folder", capsys)
    refused(arguments(run, "--data", str(tmp_path / "none")), "letters.jsonl does not", capsys)
    (tmp_path / "folder" / "letters.jsonl").mkdir(parents=True)
    refused(arguments(run, "--data", str(tmp_path / "folder")), "letters.jsonl is no file", capsys)
    run.rewrite("student", chat_template="a\0b")
    refused(arguments(run), r"student.chat_template is 'a\x00b', no file name", capsys)
    run.rewrite("student", chat_template="none.jinja")
    refused(arguments(run), "none.jinja: No such file", capsys)
    (tmp_path / "none.jinja").write_bytes(b"\xff")
    refused(arguments(run), "none.jinja is not UTF-8 text", capsys)
    (tmp_path / "none.jinja").write_text("{% if %}")
    refused(arguments(run), "the chat template has a syntax error in line 1", capsys)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("gpu", "no device 'gpu': expected auto, cpu, cuda or cuda:N"),
        ("meta", "device 'meta' is not supported"),
        ("cuda:999", "device 'cuda:999' is not there: PyTorch sees "),
    ],
)
def test_devices(device: str, told: str, tmp_path: Path, capsys: Capture) -> None:
    refused(arguments(alphabet_run(tmp_path, texts=80), "--device", device), told, capsys)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mtp-weight", "nan"), "objective.mtp_weight is nan, expected 0 to 1e"),
        (("--mtp-weight", "inf"), "objective.mtp_weight is inf, expected 0 to 1e"),
        (("--steps", str(1 << 40)), "schedule.steps is 1099511627776, expected 1 to 2147483648"),
    ],
)
def test_options_are_held_to_what_a_recipe_may_say(
    options: tuple[str, ...], told: str, tmp_path: Path, capsys: Capture
) -> None:
    refused(arguments(alphabet_run(tmp_path, texts=80), *options), told, capsys)


def test_too_few_rows(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, texts=10)
    told = "source letters has 7 rows of 64 tokens: too few"
    refused(arguments(run, "--prepare"), told, capsys)
    refused(arguments(run), told, capsys)
    write_lines(tmp_path / "letters.jsonl", [{"text": "ab"}])
    refused(arguments(run), "source letters has 1 row of 64 tokens: too few", capsys)


def test_what_a_resumed_run_is_told(tmp_path: Path, capsys: Capture) -> None:
    """One of another recipe is refused before it replaces the rows."""
    run = alphabet_run(tmp_path, steps=2, texts=80)
    assert main(arguments(run)) == 0
    capsys.readouterr()
    assert main(arguments(run, "--resume")) == 0
    assert "train: this run has finished its 2 steps" in capsys.readouterr().err
    rows = run.folder / "rows" / "letters" / "rows.npy"
    before = rows.read_bytes()
    told = "schedule.steps was 2 and is 9 now; learning rates follow from it, so a run is not ext"
    refused(arguments(run, "--resume", "--steps", "9"), told, capsys)
    run.rewrite("schedule", length=32)
    told = "state.pt is of another recipe: schedule.length was 64 and is 32 now; resume with"
    refused(arguments(run, "--resume"), told, capsys)
    assert rows.read_bytes() == before


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, texts=80)
    (tmp_path / "run").write_text("")
    refused(arguments(run), "Not a directory", capsys)


def test_vocabularies_that_do_not_fit(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, texts=80)
    run.rewrite("student", vocabulary=10**9)
    refused(arguments(run), "fewer than student.vocabulary = 1000000000", capsys)
    run.rewrite("student", vocabulary=5)
    refused(arguments(run), "5 ids would lose", capsys)


def test_teachers_that_do_not_fit(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, texts=80)
    run.values["sources"]["letters"]["distil"] = True
    run.rewrite("objective", distillation=1.0)
    small = write_folder(tmp_path / "small", vocab_size=300, **SHAPES)
    told = "has 300 token ids, fewer than the student's 301"
    refused(arguments(run, "--teacher", str(small.path)), told, capsys)
    other = write_folder(tmp_path / "other", **SHAPES)
    path = other.path / "tokenizer.json"
    path.write_text(path.read_text().replace("<unused7>", "<other7>"))
    told = "its token id 274 is not the student's"
    refused(arguments(run, "--teacher", str(other.path)), told, capsys)
    biased = write_folder(tmp_path / "biased", "qwen2", **SHAPES)
    refused(arguments(run, "--teacher", str(biased.path)), "attention biases are not", capsys)


def test_a_trained_checkpoint_of_other_groups(tmp_path: Path, capsys: Capture) -> None:
    run = alphabet_run(tmp_path, texts=80)
    trained = tiny_ternary(tmp_path / "trained", group_size=0, **SHAPES)
    source = [*arguments(run)[:3], str(trained.path), *arguments(run)[4:]]
    told = "has one ternary scale a tensor, not student.group_size = 64"
    refused(source, told, capsys)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\n20.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_memory_that_runs_out(
    error: RuntimeError, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alphabet_run(tmp_path, texts=80)

    def step(self: Trainer) -> Any:
        raise error

    monkeypatch.setattr(Trainer, "_train_step", step)
    refused(arguments(run), "the memory does not hold a batch of 8 rows", capsys)


@pytest.mark.parametrize("package", ["matplotlib", "safetensors"])
def test_what_the_end_of_a_run_needs_is_missed_at_its_start(
    package: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alphabet_run(tmp_path, texts=80)
    found = run_module.find_spec
    monkeypatch.setattr(
        run_module, "find_spec", lambda name: None if name == package else found(name)
    )
    refused(arguments(run), f"{package} is not installed: install the extra 'train'", capsys)
    assert not run.folder.exists()


def test_a_process_that_is_told_to_end(tmp_path: Path) -> None:
    run = alphabet_run(tmp_path, steps=100_000, texts=80)
    command = [sys.executable, "-m", "bitmtp_edge", *arguments(run)]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    try:
        while not (run.folder / "log.csv").is_file() or len(log_of(run.folder)) < 3:
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        _, told = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    assert told.splitlines()[-1] == (
        f"bitmtp-edge: training interrupted: go on with --resume; the state is in {run.folder}"
    )
    state = torch.load(run.folder / "state.pt", weights_only=True)
    assert state["step"] >= 40
    assert json.loads((run.folder / "model" / "config.json").read_text())["bitmtp"]["block"] == 4
