"""Task files, and the rule that scores a reply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.scoring import Item, Task, distinct_ngrams, final_answer, is_right, read_tasks


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("2 + 2 = 4\n#### 4", "4"),
        ("#### 3\nno: #### 4\n", "4"),
        ("#### 4\n\nThat was easy.", "4"),
        ("####\n\n 4 \n", "4"),
        ("the sum\n\nis 4\n 12\n\n", "12"),
        ("#### 4.", "4"),
        ("done. ...", "done"),
        ("#### 1,234,567", "1234567"),
        ("['58.0', '-42.0']", "['58.0' '-42.0']"),
        ("four, Project,  About", "four Project About"),
        ("1, 234", "1 234"),
        ("1,2", "1 2"),
        ("", ""),
        ("####", ""),
        (" \n\t\n", ""),
    ],
)
def test_the_final_answer(reply: str, answer: str) -> None:
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer", "right"),
    [
        ("#### 12.0", "12", True),
        ("#### 12", "12.00", True),
        ("#### +12.", "12", True),
        ("#### 1,200", "1200.0", True),
        ("#### -.5", "-0.50", True),
        ("#### 12", "-12", False),
        ("#### 0.1", "0.10000000000000000001", False),
        ("#### 12 apples", "12", False),
        ("#### $12", "12", False),
        ("#### 1e3", "1000", False),
        ("['12.0']", "['12']", False),
        ("four, Project", "four Project", True),
        ("four, Project", "four, Project", True),
        ("45", "4, 5", False),
        ("Yes", "yes", False),
        ("so 5\n#### 7", "worked out\n#### 7", True),
        ("", "7", False),
    ],
)
def test_what_is_right(reply: str, answer: str, right: bool) -> None:
    assert is_right(reply, answer) is right


@pytest.mark.parametrize(
    ("ids", "share"),
    [
        ([1, 2, 3, 4, 5], 1.0),
        ([1, 1, 1, 1, 1], 0.5),
        ([1, 2, 1, 2, 1, 2, 1], 0.5),
        ([7] * 13, 0.1),
        ([1, 2, 3], 1.0),
        ([], 1.0),
    ],
)
def test_distinct_runs(ids: list[int], share: float) -> None:
    assert distinct_ngrams(ids, 4) == share


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n\n" for line in lines), encoding="utf-8")
    return path


def line(task: str, prompt: str, answer: str | None, **more: object) -> dict[str, object]:
    return {"task": task, "prompt": prompt, "answer": answer, **more}


def test_tasks_of_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    chat = write(folder / "a.jsonl", line("chat", "Hi", None), line("odd", "?", "1", apart=True))
    write(folder / "b.jsonl", line("sums", "1+1", "2"), line("chat", "Yo", None))
    (folder / "notes.txt").write_text("no task")
    more = write(tmp_path / "more.jsonl", line("sums", "2+2\u2028", "4", apart=False))
    expected = [
        Task("sums", False, (Item("1+1", "2"), Item("2+2\u2028", "4"))),
        Task("odd", True, (Item("?", "1"),)),
        Task("chat", False, (Item("Hi", None), Item("Yo", None))),
    ]
    assert read_tasks([folder, more, chat]) == expected
    limited = read_tasks([folder, more], limit=1)
    assert [(task.name, len(task.items)) for task in limited] == [
        ("sums", 1),
        ("odd", 1),
        ("chat", 1),
    ]
    assert [task.scored for task in limited] == [True, True, False]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "holds no tasks"),
        ([[]], "line 1: expected an object, found a list"),
        ([{"task": "a", "prompt": "b"}], "line 1: field 'answer' is missing"),
        ([line("a", "b", None), {"task": 3}], "line 3.task: expected str"),
        ([line("", "b", None)], "line 1: task and prompt must not be empty"),
        ([line("a", "", None)], "line 1: task and prompt must not be empty"),
        ([line("a", "b", " . ")], "line 1: the answer is blank"),
        ([line("a", "b", "c", answers=[])], "line 1: unknown field 'answers'"),
        ([line("a", "b", "1"), line("a", "c", None)], "line 3: task 'a' began with another kind"),
        ([line("a", "b", "1"), line("a", "c", "1", apart=True)], "line 3: task 'a' began"),
    ],
)
def test_task_files_that_are_none(tmp_path: Path, lines: list[object], told: str) -> None:
    path = write(tmp_path / "t.jsonl", *lines)
    with pytest.raises(UserError) as error:
        read_tasks([path])
    assert str(path) in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"{", 'line 1: expected an object such as {"task"'),
        (b"\n" + b"[" * 100_000, "line 2: expected an object such as"),
        (b"ok\xff", "not UTF-8 text (byte 2)"),
    ],
)
def test_files_of_something_else(tmp_path: Path, data: bytes, told: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(UserError) as error:
        read_tasks([path])
    assert told in str(error.value)


def test_a_folder_without_task_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no \.jsonl file"):
        read_tasks([tmp_path])


def test_the_shipped_tasks_can_be_read() -> None:
    folder = Path(__file__).parents[1] / "examples" / "training" / "eval"
    if not folder.is_dir():
        pytest.skip("the examples are not here")
    tasks = {task.name: task for task in read_tasks([folder])}
    assert tasks["gsm_seen"].scored and not tasks["chat"].scored
