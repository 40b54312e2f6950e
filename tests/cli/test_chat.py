"""`bitmtp-edge chat`: turns, commands, interrupts, a full context."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from bitmtp_edge.session import Session

from ..power.fake_metering import SHORT, FakeMetering
from .conftest import Verb

Messages = list[dict[str, str]]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Messages]:
    """The messages of each reply asked for, in order; the first are the check at the start."""
    seen: list[Messages] = []
    chat_ids = Session.chat_ids

    def record(self: Session, messages: Messages) -> list[int]:
        seen.append([dict(message) for message in messages])
        return chat_ids(self, messages)

    monkeypatch.setattr(Session, "chat_ids", record)
    return seen


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str | bytes) -> None:
    data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_turns_build_on_each_other(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, turns: list[Messages]
) -> None:
    typed(monkeypatch, "Hi", "", "and then?")
    done = verb("chat", bundle, "--max-new-tokens", 10)
    assert done.code == 0
    _, first, second = turns
    assert first == [user("Hi")]
    assert second[::2] == [user("Hi"), user("and then?")]
    reply = second[1]
    assert reply["role"] == "assistant"
    assert reply["content"] and done.out.startswith(reply["content"])
    stats = done.err.splitlines()
    assert len(stats) == 2
    assert "tok/s" in stats[0] and "tokens an iteration" in stats[0]
    assert "drafts accepted" in stats[0]
    told = re.search(r"prompt (\d+) \((\d+) kept\) in ", stats[1])
    assert told and int(told[1]) > int(told[2]) > 0


def test_a_source_that_was_named_says_why_it_gave_no_joules(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, meter: FakeMetering
) -> None:
    for options, told in ((("--energy", "jtop"), True), ((), False)):
        typed(monkeypatch, "Hi")
        done = verb("chat", bundle, "--max-new-tokens", 2, *options)
        assert (f"no joules: {SHORT}" in done.err) is told


def test_reset_forgets_all_but_the_system_message(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, turns: list[Messages]
) -> None:
    typed(monkeypatch, "one", "/reset", "two", "/exit", "three")
    done = verb("chat", bundle, "--max-new-tokens", 4, "--system", "Be brief.")
    assert done.code == 0
    opening = {"role": "system", "content": "Be brief."}
    assert turns[1:] == [[opening, user("one")], [opening, user("two")]]
    assert "(the conversation is forgotten)" in done.err


def test_commands_are_single_words(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, turns: list[Messages]
) -> None:
    typed(monkeypatch, "/help", "/nope", "/usr is a folder")
    done = verb("chat", bundle, "--max-new-tokens", 2)
    assert "/reset  forget the conversation" in done.err
    assert "no command /nope" in done.err
    assert turns[1:] == [[user("/usr is a folder")]]


def test_a_full_context_is_told_and_reset_helps(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, turns: list[Messages]
) -> None:
    typed(monkeypatch, "x" * 150, "y" * 150, "z", "/reset", "y" * 150)
    done = verb("chat", bundle, "--max-new-tokens", 4)
    assert done.code == 0
    stats = [line for line in done.err.splitlines() if "that the context holds" not in line]
    assert len(stats) == 5
    with Session.open(bundle) as session:
        size = len(session.chat_ids(turns[2]))
    assert stats[1] == (
        f"(with this message the conversation has {size} tokens, and the context of 256 has no "
        "room for a reply: say it shorter, or /reset, which forgets the conversation)"
    )
    assert all("tok/s" in stats[index] for index in (0, 2, 4))
    assert user("y" * 150) not in turns[3]  # the message that was refused is not in the next turn
    assert turns[4] == [user("y" * 150)]


def test_a_context_that_is_nearly_full_is_told(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(context: int) -> list[str]:
        typed(monkeypatch, "x" * 50)
        done = verb("chat", bundle, "--max-new-tokens", 4, "--context", context, "--policy", "ar")
        return done.err.splitlines()[1:]

    with Session.open(bundle) as session:
        used = len(session.chat_ids([user("x" * 50)])) + 4
    least = int(used / 0.8)
    assert told(least) == [
        f"(the conversation has {used} of the {least} tokens that the context holds: "
        "/reset forgets it)"
    ]
    assert told(least + 1) == []


def test_a_reply_that_fills_the_context_says_so(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "x" * 150)
    told = verb("chat", bundle, "--policy", "ar").err
    assert "the context is full" in told
    assert "(the conversation has 256 of the 256 tokens that the context holds: /reset" in told


def test_an_interrupted_reply_is_kept_as_far_as_shown(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, turns: list[Messages]
) -> None:
    reply = Session.reply
    shown: list[str] = []

    def interrupted(self: Session, *arguments: object) -> object:
        *first, on_text, on_prefill = arguments

        def show(text: str) -> None:
            on_text(text)  # type: ignore[operator]
            shown.append(text)
            if len(shown) == 2:
                raise KeyboardInterrupt

        return reply(self, *first, show, on_prefill)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "reply", interrupted)
    typed(monkeypatch, "one", "two")
    done = verb("chat", bundle, "--max-new-tokens", 20)
    assert done.code == 0
    assert turns[2][1] == {"role": "assistant", "content": "".join(shown[:2])}
    assert "stopped" in done.err.splitlines()[0]
    assert "stopped" not in done.err.splitlines()[1]


def test_an_interrupt_outside_of_decoding_stops_the_reply_only(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch, turns: list[Messages]
) -> None:
    reply = Session.reply
    calls = []

    def interrupted(self: Session, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return reply(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "reply", interrupted)
    typed(monkeypatch, "one", "two")
    done = verb("chat", bundle, "--max-new-tokens", 4)
    assert done.code == 0
    assert len(calls) == 2
    assert turns[2] == [user("one"), {"role": "assistant", "content": ""}, user("two")]


def test_input_that_is_not_utf8(verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "/help", b"\xff")
    done = verb("chat", bundle)
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        "bitmtp-edge: error: line 2 of stdin is not UTF-8: convert it first"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--stop", ""), "a stop string is empty"),
        (("--engine", "magic"), "no engine 'magic'"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--temperature", "-1"), "error: --temperature is -1.0"),
    ],
)
def test_bad_options_are_one_line(
    verb: Verb, bundle: Path, options: tuple[str, ...], told: str
) -> None:
    assert told in verb("chat", bundle, *options).refused()


def test_a_bundle_without_a_chat_template_says_so(
    verb: Verb, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "template", None)
    assert "has no chat template" in verb("chat", bundle).refused()


class Terminal:
    """A `bitmtp-edge chat` on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], side: int) -> None:
        self.process = process
        self._side = side
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Reads on until ``text`` appears behind what was waited for before."""
        deadline = monotonic() + seconds
        while text not in self.text:
            assert monotonic() < deadline, f"no {text!r} in {self.text!r}"
            if select.select([self._side], [], [], 1)[0]:
                self.text += os.read(self._side, 4096).decode("utf-8", "replace")
        self.text = self.text.partition(text)[2]

    def interrupt(self, told: str) -> None:
        """Ctrl-C, until it is answered with ``told``.

        Python does not notice a signal that comes between readline's prompt and its wait.
        """
        for _ in range(20):
            self.process.send_signal(signal.SIGINT)
            with suppress(AssertionError):
                self.wait_for(told, 2)
                return
        raise AssertionError(f"no {told!r} in {self.text!r}")


@contextmanager
def terminal(bundle: Path, folder: Path, *options: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    # A shell that runs tests in the background ignores SIGINT, and its children inherit that.
    chat = (
        "import signal, sys; from bitmtp_edge.cli import main;"
        "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"
    )
    command = [sys.executable, "-c", chat, "chat", str(bundle), *options]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_ctrl_c_stops_the_reply_and_ctrl_d_leaves(bundle: Path, tmp_path: Path) -> None:
    # onnxruntime is slow enough for a reply of 200 tokens to be under way when the signal comes.
    pytest.importorskip("onnxruntime")
    options = ("--engine", "onnxruntime", "--policy", "ar", "--max-new-tokens", "200")
    with terminal(bundle, tmp_path, *options) as chat:
        chat.wait_for("/help")
        chat.wait_for("> ")
        chat.type("one\n")
        chat.wait_for("one\r\n")
        assert select.select([chat._side], [], [], 60)[0]  # the reply has begun
        chat.process.send_signal(signal.SIGINT)
        chat.wait_for(", stopped]")
        chat.wait_for("> ")
        assert chat.process.poll() is None
        chat.type("/reset\n")
        chat.wait_for("(the conversation is forgotten)")
        chat.wait_for("> ")
        chat.type("\x04")
        assert chat.process.wait(60) == 0


def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_leaves(
    bundle: Path, tmp_path: Path
) -> None:
    with terminal(bundle, tmp_path) as chat:
        chat.wait_for("> ")
        for _ in range(2):  # with a line between them they are not two in a row
            chat.type("/exit")
            chat.interrupt("(Ctrl-C once more, or Ctrl-D, leaves)\r\n> ")
            chat.type("/reset\n")
            chat.wait_for("(the conversation is forgotten)\r\n> ")
        chat.interrupt("leaves)\r\n> ")
        chat.interrupt("\r\n")
        assert chat.process.wait(60) == 0


def test_a_long_prompt_is_noted_on_a_terminal(bundle: Path, tmp_path: Path) -> None:
    slow = (
        "import sys, time; from bitmtp_edge.engines.cpu import CpuEngine\n"
        "replay = CpuEngine.replay\n"
        "def late(*a): time.sleep(0.8); return replay(*a)\n"
        "CpuEngine.replay = late\n"
        "from bitmtp_edge.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", slow, "run", str(bundle), "--raw", "--prompt", "x" * 200]
    command += ["--max-new-tokens", "1", "--policy", "ar"]
    ours, theirs = pty.openpty()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, check=True)
    os.close(theirs)
    told = os.read(ours, 4096).decode()
    os.close(ours)
    assert told.startswith("\rreading the prompt: 128 of 199 tokens\x1b[K")
    assert "\r\x1b[K" in told and "199 of 199" not in told
    piped = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True)
    assert piped.stdout == done.stdout
    assert piped.stderr.startswith(b"[") and piped.stderr.count(b"\n") == 1
