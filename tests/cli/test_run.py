"""`bitmtp-edge run`: one prompt in, one reply out."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge import session
from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.session import Session

from ..decode.trace_engine import cost_table
from ..power.fake_metering import SHORT, FakeMetering
from .conftest import Done, Verb

KEYS = {
    "text",
    "token_ids",
    "finish_reason",
    "prompt_tokens",
    "generated_tokens",
    "iterations",
    "tokens_per_iteration",
    "accepted_lengths",
    "prefill_s",
    "decode_s",
    "tokens_per_s",
    "engine",
    "policy",
    "energy",
    "energy_reason",
}


def stdin_of(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_json_is_one_object_with_the_promised_keys(verb: Verb, bundle: Path) -> None:
    done = verb("run", bundle, "--prompt", "Hi", "--max-new-tokens", 12, "--json")
    assert done.code == 0
    assert done.json.keys() >= KEYS
    assert len(done.json["token_ids"]) == done.json["generated_tokens"] <= 12
    assert len(done.json["accepted_lengths"]) == done.json["iterations"]
    assert done.json["engine"] == "cpu"
    assert done.json["policy"] == "nested"
    assert done.json["energy"] is None and done.json["energy_reason"]
    assert done.err == ""


def test_energy_in_json_and_text(verb: Verb, bundle: Path, meter: FakeMetering) -> None:
    arguments = ("run", bundle, "--prompt", "Hi", "--max-new-tokens", 12)
    done = verb(*arguments, "--json")
    energy = done.json["energy"]
    assert energy["joules_per_token"] == pytest.approx(0.2)
    assert (energy["source"], energy["total_is"]) == ("fake", "VDD_IN")
    assert done.json["energy_reason"] is None
    assert "0.2 J/token at 2 W" in verb(*arguments).err
    assert meter.closed


@pytest.mark.parametrize(
    ("option", "why"),
    [("auto", "no power source works here"), ("off", "the meter is off (--energy off)")],
)
def test_no_energy_and_why(verb: Verb, bundle: Path, option: str, why: str) -> None:
    arguments = ("run", bundle, "--prompt", "Hi", "--max-new-tokens", 4, "--energy", option)
    done = verb(*arguments, "--json")
    assert done.json["energy"] is None
    assert why in done.json["energy_reason"]
    assert "J/token" not in verb(*arguments).err


def test_a_source_that_was_named_says_why_it_gave_no_joules(
    verb: Verb, bundle: Path, meter: FakeMetering
) -> None:
    short = ("run", bundle, "--prompt", "Hi", "--max-new-tokens", 4)
    assert f"no joules: {SHORT}" in verb(*short, "--energy", "nvml").err
    assert "no joules" not in verb(*short).err


def test_a_power_source_that_is_none(verb: Verb, bundle: Path) -> None:
    told = verb("run", bundle, "--prompt", "Hi", "--energy", "magic").refused()
    assert "there is no power source 'magic'" in told


@pytest.mark.parametrize("policy", ["ar", "nested"])
def test_the_stream_is_the_text(verb: Verb, bundle: Path, policy: str) -> None:
    arguments = ("run", bundle, "--prompt", "the hat", "--max-new-tokens", 40, "--policy", policy)
    streamed, whole = verb(*arguments), verb(*arguments, "--json")
    text = whole.json["text"]
    assert streamed.out == (text if text.endswith("\n") else text + "\n")
    assert f"{whole.json['generated_tokens']} tokens, " in streamed.err
    assert streamed.err.count("\n") == 1


def test_policies_and_gammas_give_the_same_tokens(verb: Verb, bundle: Path) -> None:
    def ids(*options: object) -> list[int]:
        done = verb("run", bundle, "--prompt", "an inn", "--max-new-tokens", 60, "--json", *options)
        tokens: list[int] = done.json["token_ids"]
        return tokens

    expected = ids("--policy", "ar")
    for gamma in (1, 3, 4):
        assert ids("--policy", "nested", "--gamma", gamma) == expected


def test_block_policies(verb: Verb, tiny_ternary_bundle: Bundle) -> None:
    def run(*options: object) -> Done:
        prompt = ("run", tiny_ternary_bundle.path, "--prompt", "an inn", "--max-new-tokens", 40)
        return verb(*prompt, *options)

    expected = run("--policy", "ar", "--json").json["token_ids"]
    speculative = run("--policy", "speculative", "--block", 3, "--json").json
    assert speculative["token_ids"] == expected
    assert speculative["policy_settings"] == {"block": 3} and all(speculative["verified"])
    settings = ("--policy", "hybrid", "--tau", 0.001, "--min-prefix", 1)
    hybrid = run(*settings, "--json").json
    assert hybrid["policy_settings"] == {"block": 4, "tau": 0.001, "min_prefix": 1}
    assert len(hybrid["confident_lengths"]) == len(hybrid["verified"]) == hybrid["iterations"]
    assert not any(hybrid["verified"][:-2])
    told = f"{sum(hybrid['verified'])} of {hybrid['iterations']} iterations verified"
    assert told in run(*settings).err
    for name in ("confidence", "speculative"):
        assert re.search(r", \d+ of \d+ iterations verified, ", run("--policy", name).err)
    assert "verified" not in run("--policy", "ar").err


def test_what_block_auto_took_is_told(
    verb: Verb, tiny_ternary_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ("--prompt", "an inn", "--max-new-tokens", 40, "--policy", "speculative")
    for ms, told in ((lambda width: width**3, "mostly ar, "), (lambda width: 1.0, "mostly block ")):
        costs = cost_table(ReplayStates.of(tiny_ternary_bundle), ms)
        monkeypatch.setattr(session, "costs_of", lambda *_, costs=costs: costs)
        done = verb("run", tiny_ternary_bundle.path, *prompt, "--block", "auto")
        assert told in done.err and " iterations verified, " in done.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--block", "5"), "trained for blocks of 4 tokens: expected 2 to 4"),
        (("--block", "0"), "--block"),
        (("--tau", "0"), "error: --tau is 0.0"),
        (("--tau", "nan"), "error: --tau is nan"),
        (("--min-prefix", "5"), "error: --min-prefix is 5: expected 1 to 4"),
        (("--policy", "nested"), "its model has no base plane to draft with; choose ar or conf"),
        (("--policy", "ar", "--block", "2"), "error: --block has no effect on policy ar"),
        (("--gamma", "2"), "error: --gamma has no effect on policy hybrid"),
        (("--temperature", "0.5"), "policy hybrid commits the most likely tokens"),
    ],
)
def test_what_does_not_fit_a_model_with_masks(
    verb: Verb, tiny_ternary_bundle: Bundle, options: tuple[str, ...], told: str
) -> None:
    assert told in verb("run", tiny_ternary_bundle.path, "--prompt", "Hi", *options).refused()


def test_the_chat_template_is_applied_unless_raw(verb: Verb, bundle: Path) -> None:
    def prompt_tokens(*options: str) -> int:
        done = verb("run", bundle, "--prompt", "xyz", "--max-new-tokens", 1, "--json", *options)
        count: int = done.json["prompt_tokens"]
        return count

    assert prompt_tokens("--raw") == 3
    assert prompt_tokens() > 10


def test_a_stop_string_ends_the_reply_before_it(verb: Verb, bundle: Path) -> None:
    arguments = ("run", bundle, "--prompt", "Hi", "--raw", "--max-new-tokens", 40, "--json")
    whole = verb(*arguments).json["text"]
    stop = whole[len(whole) // 2 :][:3]
    done = verb(*arguments, "--stop", "never in it", "--stop", stop)
    assert done.json["finish_reason"] == "stop"
    assert stop not in done.json["text"]
    assert whole.startswith(done.json["text"])
    assert done.json["stop_string"] == stop
    assert f", ended by stop string {stop!r}]" in verb(*arguments[:-1], "--stop", stop).err


@pytest.mark.parametrize(("data", "prompt"), [(b"abc\n", "abc"), ("ä\n\r\n".encode(), "ä\n")])
def test_a_dash_reads_stdin(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, prompt: str
) -> None:
    options = ("--raw", "--max-new-tokens", 4, "--json")
    stdin_of(monkeypatch, data)
    piped = verb("run", bundle, "--prompt", "-", *options)
    given = verb("run", bundle, "--prompt", prompt, *options)
    assert piped.json["token_ids"] == given.json["token_ids"]
    assert piped.json["prompt_tokens"] == given.json["prompt_tokens"]


def test_a_seed_repeats_a_sampled_reply(verb: Verb, bundle: Path) -> None:
    def text(seed: int) -> str:
        sampling = ("--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--seed", seed)
        arguments = ("run", bundle, "--prompt", "Hi", "--max-new-tokens", 12, "--json")
        found: str = verb(*arguments, *sampling).json["text"]
        return found

    drawn = verb("run", bundle, "--prompt", "Hi", "--max-new-tokens", 12, "--temperature", 1.5)
    again = drawn.err.partition(", seed ")[2].rstrip("]\n")
    arguments = ("run", bundle, "--prompt", "Hi", "--max-new-tokens", 12, "--temperature", 1.5)
    assert verb(*arguments, "--seed", again).out == drawn.out

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_onnxruntime_runs_it_too(verb: Verb, bundle: Path) -> None:
    pytest.importorskip("onnxruntime")
    options = ("--engine", "onnxruntime", "--provider", "CPUExecutionProvider", "--json")
    done = verb("run", bundle, "--prompt", "Hi", "--max-new-tokens", 2, *options)
    assert done.json["engine"] == "onnxruntime"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "Hi", "--max-new-tokens", "0"), "--max-new-tokens"),
        (("--prompt", "Hi", "--gamma", "0"), "--gamma"),
        (("--prompt", "Hi", "--gamma", "500"), "no verify window holds 501 tokens"),
        (("--prompt", "Hi", "--policy", "ar", "--gamma", "2"), "no effect on policy ar"),
        (("--prompt", "Hi", "--block", "4"), "error: --block has no effect on policy nested"),
        (
            ("--prompt", "Hi", "--policy", "hybrid"),
            "no mask embeddings to draft with; choose ar or",
        ),
        (("--prompt", "Hi", "--top-k", "5"), "no effect at temperature 0"),
        (("--prompt", "Hi", "--top-p", "0.9"), "no effect at temperature 0"),
        (("--prompt", "Hi", "--policy", "magic"), "'magic' is not one of 'ar', 'nested', 'conf"),
        (("--prompt", "Hi", "--engine", "magic"), "'magic': choose auto, tensorrt, cuda, cpu"),
        (("--prompt", "Hi", "--provider", "magic"), "add --engine onnxruntime"),
        (("--prompt", "Hi", "--threads", "-1"), "--threads"),
        (("--prompt", "Hi", "--threads", "257"), "error: --threads is 257: expected 1 to 256"),
        (("--prompt", "Hi", "--threads", "2147483648"), "expected 1 to 256"),
        (("--prompt", "Hi \udcff"), "the prompt is not UTF-8"),
        (("--prompt", "Hi", "--stop", "a\udcff"), "is not UTF-8 text"),
        (("--prompt", "Hi", "--temperature", "-1"), "error: --temperature is -1.0"),
        (("--prompt", "Hi", "--temperature", "nan"), "error: --temperature is nan"),
        (("--prompt", "Hi", "--top-k", "-1"), "error: --top-k is -1"),
        (("--prompt", "Hi", "--top-p", "0"), "error: --top-p is 0.0"),
        (("--prompt", "Hi", "--seed", "-1"), "error: --seed is -1"),
        (("--prompt", "Hi", "--stop", ""), "a stop string is empty"),
        (("--prompt", "x " * 200), "but the context of 256 holds 255 and a reply"),
        (("--prompt", "x " * 9, "--context", "8"), "but the context of 8 holds 7"),
        (
            ("--prompt", "Hi", "--context", "257"),
            "error: --context is 257 tokens: expected 2 to 256",
        ),
        ((), "Missing option '--prompt'"),
    ],
)
def test_bad_input_is_one_line(
    verb: Verb, bundle: Path, options: tuple[str, ...], told: str
) -> None:
    assert told in verb("run", bundle, *options).refused()


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_missing_bundle_is_one_line(verb: Verb, tmp_path: Path, as_json: list[str]) -> None:
    told = verb("run", tmp_path / "none", "--prompt", "Hi", *as_json).refused()
    assert "none does not exist" in told


@pytest.mark.parametrize(
    ("data", "told"), [(b"ab\xff", "not UTF-8 (byte 2)"), (b"\n", "the prompt is empty")]
)
def test_stdin_that_is_no_prompt(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, told: str
) -> None:
    stdin_of(monkeypatch, data)
    assert told in verb("run", bundle, "--prompt", "-").refused()


def test_an_interrupt_prints_what_there_is(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "reply", interrupted_after(2, Session.reply))
    done = verb("run", bundle, "--prompt", "Hi", "--raw", "--max-new-tokens", 40, "--policy", "ar")
    assert done.code == 130
    assert "stopped" in done.err
    shown = done.out.removesuffix("\n")
    assert shown

    monkeypatch.undo()
    whole = verb("run", bundle, "--prompt", "Hi", "--raw", "--max-new-tokens", 40, "--json").json
    assert whole["text"].startswith(shown)
    assert whole["text"] != shown


def interrupted_after(pieces: int, reply: Callable[..., object]) -> Callable[..., object]:
    """`Session.reply` that gets a Ctrl-C once ``pieces`` pieces of text were shown."""

    def wrapped(self: Session, *arguments: object) -> object:
        *first, on_text, on_prefill = arguments
        shown: list[str] = []

        def show(text: str) -> None:
            on_text(text)  # type: ignore[operator]
            shown.append(text)
            if len(shown) == pieces:
                raise KeyboardInterrupt

        return reply(self, *first, show, on_prefill)

    return wrapped


def test_an_interrupted_process_exits_130_with_its_json(bundle: Path, tmp_path: Path) -> None:
    interrupt_itself = (
        "import os, signal, sys\n"
        "from bitmtp_edge.decode.loop import Decoder\n"
        "from bitmtp_edge.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "iterations = Decoder.iterations\n"
        "def three(self, limit):\n"
        "    for number, each in enumerate(iterations(self, limit)):\n"
        "        if number == 3: os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield each\n"
        "Decoder.iterations = three\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", interrupt_itself, "run", bundle, "--prompt", "Hi", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 130, done.stderr
    assert Done(130, done.stdout, done.stderr).json["finish_reason"] == "interrupted"


def test_more_threads_than_processors_are_told(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    run = ("run", bundle, "--prompt", "Hi", "--max-new-tokens", 2, "--json", "--threads")
    assert verb(*run, 1).err == ""
    told = verb(*run, 2)
    assert told.code == 0 and told.err.count("\n") == 1
    assert told.err.startswith("bitmtp-edge: --threads 2 on 1 processor: threads wait for each")
