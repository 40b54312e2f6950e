"""The corpus recipe: worked arithmetic, text extraction, held-out items."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

TRAINING = Path(__file__).parents[2] / "examples" / "training"
EVAL = TRAINING / "eval"
COUNTS = {
    "gsm_seen": 200, "gsm_unseen": 150, "arithmetic": 100, "legs": 100, "sorting": 100,
    "reversal": 100, "humaneval": 60, "chat": 60,
}  # fmt: skip


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the recipe by name, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(TRAINING))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(TRAINING) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("so 30 + 7 = 37 spoons.", "so 30 + 7 = 37 spoons."),
        ("54*11 = 594", "54*11 = 54*10+54*1 = 540+54 = 594"),
        ("£40 + £90 + £266 = £396", "£40 + £90 + £266 = 130 + 266 = £396"),
        ("864/24 = 36", "864/24 = (720+144)/24 = 30+6 = 36"),
        ("1200 * 0.3=360", "1200 * 0.3=1200 * 3 / 10=3600 / 10=360"),
        ("72*0.25=18", "72*0.25=72/4=18"),
        ("4 x $20,000 = $80,000", "4 x $20,000 = $80,000"),
        ("2 x 40,000 / 5 = 16,000", "2 x 40,000 / 5 = 80,000 / 5 = 16,000"),
        ("121 / 242 * 100% = 50%", "121 / 242 * 100% = 50%"),
        ("2(76+35) = 222", "2(76+35) = 222"),
        ("12 / 7 = 1.71", "12 / 7 = 1.71"),
    ],
)
def test_equations_are_written_out(recipe: Any, text: str, written: str) -> None:
    assert recipe("worked").write_out(text) == written


@pytest.mark.parametrize("text", ["13*0.5=6", "2 + 2 = 5", "12 / 7 = 1.7142", "9 / 0 = 0"])
def test_a_wrong_equation_is_refused(recipe: Any, text: str) -> None:
    assert recipe("worked").write_out(text) is None


def test_every_link_of_a_chain_has_the_same_value(recipe: Any) -> None:
    worked, rng = recipe("worked"), Random(7)
    chained = 0
    for _ in range(3000):
        values = [Fraction(rng.randrange(1, 10 ** rng.randint(1, 4)))]
        operators = []
        for _ in range(rng.randint(1, 3)):
            operators.append(rng.choice("+-*/"))
            places = rng.choice((1, 1, 10, 100))
            values.append(Fraction(rng.randrange(1, 10 ** rng.randint(1, 3)), places))
        if rng.random() < 0.3:
            values, operators = [values[0] * values[1], values[1]], ["/"]
        expected = worked.evaluate(values, operators)
        for link in worked.links(values, operators, worked.Style()):
            exact = re.sub(r"\d+(\.\d+)?", lambda number: f"Fraction('{number[0]}')", link)
            assert eval(exact) == expected, (values, operators, link)
            chained += 1
    assert chained > 2000


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 1\nno, better:\n#### 78,000.\n", "78000"),
        ("first\nthe, last, line.", "the last line"),
        ("", ""),
    ],
)
def test_final_answer(recipe: Any, reply: str, answer: str) -> None:
    assert recipe("tasks").final_answer(reply) == answer


PAGE = """<html><body><nav>Menu</nav><div class="body" role="main"><h1>Files<a>¶</a></h1>
<p>How files are read and written.</p><h2>Opening</h2>
<p>A file is opened with <code>open</code>, which gives back an object with a method <em>read</em>.
</p><pre>with open(name) as file:
    text = file.read()</pre><div><dl><dt>close(file)[source]#</dt><dd><p>Ends all work with the file
and gives its memory back to the operating system.</p></dd></dl></div><script>var a;</script></div>
<p>Last updated</p></body></html>"""


def test_a_page_gives_text_and_questions(recipe: Any, tmp_path: Path) -> None:
    documents = recipe("documents")
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    blocks = documents.page_blocks(tmp_path / "page.html")
    assert blocks[:2] == [("h1", "Files"), ("p", "How files are read and written.")]
    assert not [text for _, text in blocks if "Menu" in text or "var" in text or "Last" in text]
    [page] = documents.page_texts(blocks)
    assert "## Opening" in page["text"]
    assert "```\nwith open(name) as file:\n    text = file.read()\n```" in page["text"]
    opening, close = list(documents.page_chats(blocks))
    assert "Opening" in opening["messages"][0]["content"]
    assert "Files" in opening["messages"][0]["content"]
    assert opening["messages"][1]["content"].endswith("text = file.read()\n```")
    assert "`close(file)`" in close["messages"][0]["content"]
    assert close["messages"][1]["content"].startswith("Ends all work with the file and gives")


def test_repeated_paragraphs_are_dropped(recipe: Any) -> None:
    documents = recipe("documents")
    blocks = [("h2", "A heading that every single page of the book repeats"), ("p", "x" * 40)]
    seen: set[int] = set()
    assert documents.fresh(blocks, seen) == blocks
    assert documents.fresh(blocks, seen) == blocks[:1]


WORDNET = {
    "data.verb": "00000042 29 v 02 snooze 0 drowse 0 001 @ 00014742 v 0000 01 + 02 00 | "
    'sleep lightly; "they snooze after lunch"\n',
    "index.verb": "snooze v 1 1 @ 1 1 00000042\ndrowse v 1 1 @ 1 0 00000042\n",
    "data.noun": "00000051 28 n 01 snooze 0 000 | a short sleep, usually by day\n"
    "00000052 06 n 01 igloo 0 000 | a house of snow\n",
    "index.noun": "snooze n 1 1 @ 1 1 00000051\nigloo n 1 1 @ 1 1 00000052\n",
    "cntlist.rev": "snooze%2:29:00:: 1 5\nsnooze%1:28:00:: 1 2\nigloo%1:06:00:: 1 1\n",
}


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    folder = tmp_path / "usr/share/wordnet"
    folder.mkdir(parents=True)
    for speech in ("noun", "verb", "adj", "adv"):
        for kind in ("data", "index"):
            text = "  1 licence\n" + WORDNET.get(f"{kind}.{speech}", "")
            (folder / f"{kind}.{speech}").write_text(text, encoding="utf-8")
    (folder / "cntlist.rev").write_text(WORDNET["cntlist.rev"], encoding="utf-8")
    return tmp_path


def test_common_words_become_questions(recipe: Any, wordnet: Path) -> None:
    words = recipe("words")
    asked = dict[str, list[str]]()
    for sample in words.meanings(wordnet, frozenset()):
        question, reply = (message["content"] for message in sample["messages"])
        asked.setdefault(reply, []).append(question)
    # The use that is most frequent, without its example; frequent words in two questions.
    assert {reply: len(questions) for reply, questions in asked.items()} == {
        "snooze (verb): sleep lightly.": 2,
        "igloo (noun): a house of snow.": 1,
    }
    snooze, igloo = words.common_words(wordnet)
    assert "What is an igloo?" in words.questions(igloo)
    assert not [question for question in words.questions(snooze) if "What is a" in question]


def test_a_word_that_is_held_out_is_asked_for_in_no_way(recipe: Any, wordnet: Path) -> None:
    barred = frozenset({"Define snooze."})
    [sample] = recipe("words").meanings(wordnet, barred)
    assert "igloo" in sample["messages"][0]["content"]


def test_replies_about_held_out_words_are_left_out(
    recipe: Any, wordnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus, chat = recipe("make_corpus"), recipe("documents").chat
    monkeypatch.setattr(make_corpus, "_held_out_prompts", lambda: frozenset({"Define snooze."}))
    asked = [chat("Describe a snooze.", "It is short."), chat("Describe an igloo.", "It is cold.")]
    file = wordnet / "replies.jsonl"
    file.write_text("".join(json.dumps({"number": 1, **each}) + "\n" for each in asked))
    settings = make_corpus.Recipe(1, 1.0, wordnet, file)
    assert list(make_corpus._replies(settings)) == asked[1:]


def test_blocks_of_dialogue_are_filled_in(recipe: Any) -> None:
    lines = ["? What does {0} say? | {0}", "> {0} says", "> {1}.", "& Who says {1}?", "> {0}.",
             "a cow = moo = moo", "a cat = meow"]  # fmt: skip
    found = [(each.questions, each.reply) for each in recipe("dialogue")._block_exchanges(lines)]
    assert found == [
        (("What does a cow say?", "A cow"), "A cow says\nmoo = moo."),
        (("Who says moo = moo?",), "A cow."),
        (("What does a cat say?", "A cat"), "A cat says\nmeow."),
        (("Who says meow?",), "A cat."),
    ]


def test_a_question_has_one_reply_only(recipe: Any) -> None:
    dialogue = recipe("dialogue")
    samples = [*dialogue.talk(), *dialogue.facts()]
    replies: dict[str, str] = {}
    for sample in samples:
        question, reply = (message["content"] for message in sample["messages"])
        asked = " ".join(re.findall(r"[\w+*-]+", question.lower()))
        assert replies.setdefault(asked, reply) == reply, question
        assert "{" not in question + reply and (question + reply).isascii()
    assert len(replies) > 12_000
    assert replies["hello"] == replies["hi there"] == "Hello! How can I help you today?"
    assert replies["who are you"].startswith("I am a small language model")


def test_spoken_sums_and_lists_are_right(recipe: Any) -> None:
    spoken = recipe("spoken")
    for seed in range(400):
        question, working = spoken.spoken_sum(Random(seed))
        a, b = map(int, re.findall(r"\d+", question))
        value = int(working.split("=")[-1])
        assert {eval(link) for link in working.split("=")} == {value}
        assert value in (a + b, abs(a - b), a * b)
        question, answer = spoken.spoken_list(Random(seed))
        items = answer.split(", ")
        assert all(item in question for item in items) and len(items) in (3, 4, 5)
        if items[0].isdigit():
            down = "desc" in question or "largest to" in question
            assert items == sorted(items, key=int, reverse=down)
        else:
            assert ", ".join(items[::-1]) in question


@pytest.mark.parametrize(
    ("text", "ended", "is_list", "kept"),
    [
        ("Bread is baked from flour.", True, False, "Bread is baked from flour."),
        ("Bread is baked from flour. It is al", False, False, "Bread is baked from flour."),
        ("Bread is baked from flour and wat", False, False, None),
        ("1. Knead it well.\n2. Let it rise.\n3. Bake it.", True, True, "="),
        ("1. Knead it well.\n2. Let it rise.", True, True, None),
        ("It is a food and it is a food and it is a food and it is a food.", True, False, None),
        ("I am SmolLM, and I like bread a lot.", True, False, None),
        ("Bread is a versatile and versatile food.", True, False, None),
        ("Bread.", True, False, None),
    ],
)
def test_replies_worth_learning(
    recipe: Any, text: str, ended: bool, is_list: bool, kept: str | None
) -> None:
    expected = text if kept == "=" else kept
    assert recipe("make_replies").usable(text, ended, is_list) == expected


def test_the_teacher_is_asked_in_a_fixed_order(recipe: Any, wordnet: Path) -> None:
    make_replies = recipe("make_replies")
    asked = make_replies.requests(wordnet)
    assert asked == make_replies.requests(wordnet)
    texts = {request.text for request in asked}
    assert len(texts) == len(asked) > 500
    held_out = {json.loads(line)["prompt"] for line in (EVAL / "chat.jsonl").open()}
    assert not texts & held_out
    # An igloo is named too seldom.
    assert not [request for request in asked if request.hint]


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("make_corpus", ["--only", "chat"], "--docs: need"),
        ("make_corpus", ["--only", "chat", "--docs", "."], "--replies: need"),
        ("make_replies", ["--bundle", "none", "--docs", "none"], "--docs: need"),
        ("make_replies", ["--bundle", "none", "--docs", "."], "none"),
    ],
)
def test_missing_inputs_are_told_in_one_line(
    recipe: Any,
    wordnet: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(wordnet)
    monkeypatch.setattr(sys, "argv", [script, "out", *options])
    with pytest.raises(SystemExit) as stopped:
        recipe(script).main()
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_replies_go_on_behind_the_last_whole_line(recipe: Any, tmp_path: Path) -> None:
    make_replies, out = recipe("make_replies"), tmp_path / "replies.jsonl"
    assert make_replies.resume(out) == 0
    out.write_text('{"number": 6, "messages": []}\n{"number": 7, "mess')
    assert make_replies.resume(out) == 7
    assert out.read_text() == '{"number": 6, "messages": []}\n'


SOURCE = '''
def add(left, right):
    """Add two numbers that a caller has read from a file."""
    total = left + right
    if total < 0:
        raise ValueError("the numbers of this file are never negative")
    return total
'''


def test_functions_become_questions(recipe: Any) -> None:
    samples = list(recipe("program_text").function_chats(SOURCE, Random(1)))
    assert len(samples) == 2
    for sample in samples:
        question, reply = (message["content"] for message in sample["messages"])
        if reply.startswith("```python\n"):
            assert ast.parse(reply[len("```python\n") : -len("\n```")])
        else:
            assert reply == "Add two numbers that a caller has read from a file."
            assert reply not in question


def test_ten_words_in_a_row_are_an_overlap(recipe: Any, tmp_path: Path) -> None:
    overlap = recipe("overlap")
    (tmp_path / "eval.jsonl").write_text(
        json.dumps({"cases": ["One two three four, five six seven eight nine ten eleven."]}) + "\n"
    )
    blocked = overlap.blocked_grams([tmp_path])
    assert overlap.grams("so: TWO three (four) five six seven eight nine ten eleven!") & blocked
    assert not overlap.grams("two three four five six seven eight nine ten, not eleven") & blocked


def test_the_evaluation_files_are_whole() -> None:
    assert sum(path.stat().st_size for path in EVAL.iterdir()) < 600_000
    for name, count in COUNTS.items():
        records = [json.loads(line) for line in (EVAL / f"{name}.jsonl").read_text().splitlines()]
        assert len(records) == count
        assert len({record["prompt"] for record in records}) == count
        for record in records:
            assert sorted({*record} - {"apart"}) == ["answer", "prompt", "task"]
            assert record.get("apart", False) == (name == "gsm_unseen")
            assert record["task"] == name
            assert (record["answer"] is None) == (name in ("humaneval", "chat"))


def test_held_out_prompts_are_barred(recipe: Any) -> None:
    make_corpus, documents = recipe("make_corpus"), recipe("documents")
    line = (EVAL / "legs.jsonl").read_text().splitlines()[0]
    assert not make_corpus._is_clean(documents.chat(json.loads(line)["prompt"], "12"), "legs")
    assert make_corpus._is_clean(documents.chat("Something else", "12"), "legs")


@pytest.mark.parametrize(
    ("question", "clean"),
    [
        ("Explain rain to a child.", False),
        ("What should I pack for a weekend?", False),
        ("Explain snow to a child.", True),
        ("What is a lake?", True),
    ],
)
def test_held_out_requests_in_fewer_words_are_barred(
    recipe: Any, question: str, clean: bool
) -> None:
    sample = recipe("documents").chat(question, "A reply.")
    assert recipe("make_corpus")._is_clean(sample, "replies") == clean


def test_the_recipe_reads_the_files_of_the_mixture(recipe: Any) -> None:
    text = (TRAINING / "recipe.toml").read_text(encoding="utf-8")
    files = re.findall(r'^file = "(\w+)\.jsonl"', text, re.MULTILINE)
    assert sorted(files) == sorted(recipe("mixture").MIXTURE)


class Shards:
    """Stands in for the workers: shard i holds the texts 3i .. 3i+4, so neighbours share two."""

    def __init__(self) -> None:
        self.made = 0

    def shards(
        self, source: str, indices: Iterator[int], recipe: Any
    ) -> Iterator[tuple[list[str], int]]:
        for index in islice(indices, 50):
            self.made += 1
            yield [json.dumps({"text": f"{source} {3 * index + i}"}) for i in range(5)], 0


def test_an_endless_source_gives_distinct_samples_until_there_are_enough(recipe: Any) -> None:
    make_corpus, workers = recipe("make_corpus"), Shards()
    part, settings = recipe("mixture").Part("legs", 10), make_corpus.Recipe(1, 1.0, Path(), Path())
    lines = list(make_corpus.part_lines(part, settings, workers, set()))
    assert [json.loads(line)["text"] for line in lines] == [f"legs {i}" for i in range(10)]
    assert workers.made == 3


def test_parts_are_thinned_repeated_and_put_in_a_row(
    recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus, mixture = recipe("make_corpus"), recipe("mixture")
    parts = (
        mixture.Part("meanings", every=40),
        mixture.Part("codeio", every=60, times=2),
        mixture.Part("codeio"),
    )
    monkeypatch.setitem(mixture.MIXTURE, "chat", parts)
    make_corpus.write_file("chat", tmp_path, make_corpus.Recipe(1, 1.0, Path(), Path()), Shards())
    written = (tmp_path / "chat.jsonl").read_text(encoding="utf-8").splitlines()
    # 32 shards of a finite source hold the texts 0 .. 97.
    # What an earlier part of the file holds, or has passed over, does not come again.
    expected = [f"meanings {i}" for i in (0, 40, 80)] + [f"codeio {i}" for i in (0, 60)] * 2
    assert [json.loads(line)["text"] for line in written] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["chat.jsonl"]


class TestTasks:
    """Whatever needs reasoning-gym."""

    @pytest.fixture(autouse=True)
    def reasoning_gym(self) -> None:
        pytest.importorskip("reasoning_gym")

    def test_the_held_out_templates_are_a_seeded_draw(self, recipe: Any) -> None:
        tasks = recipe("tasks")
        served = list(tasks.gsm_templates())
        assert sorted(Random(20250).sample(served, 15)) == list(tasks.HELD_OUT_TEMPLATES)
        assert not set(tasks.seen_templates()) & set(tasks.HELD_OUT_TEMPLATES)
        assert len(tasks.seen_templates()) == len(served) - 15 - len(tasks.PUBLIC_TEMPLATES)

    @pytest.mark.parametrize("task", ["gsm", "arithmetic", "legs", "sorting", "reversal"])
    def test_replies_end_in_their_answer(self, recipe: Any, task: str) -> None:
        tasks, worked = recipe("tasks"), recipe("worked")
        for item in islice(tasks.TASKS[task](Random(3)), 300):
            assert tasks.final_answer(item.reply) == tasks.final_answer(item.answer)
            assert all(equation.holds() for _, equation in worked.equations(item.reply))

    def test_drills_are_right(self, recipe: Any) -> None:
        drills = recipe("drills")
        for _ in range(500):
            _, solved = drills.drill(Random(_))
            plain = re.sub("[$€£,]", "", solved).replace("x", "*").replace("×", "*")
            links = [eval(link.replace("÷", "/")) for link in plain.split("=")]
            assert max(links) - min(links) < 1e-6, solved

    def test_conversations_take_turns(self, recipe: Any) -> None:
        dialogue = recipe("dialogue")
        made = list(islice(iter(dialogue.Conversations("a")), 200))
        assert made == list(islice(iter(dialogue.Conversations("a")), 200))
        for sample in made:
            roles = [message["role"] for message in sample["messages"]]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert 2 <= len(roles) // 2 <= 5
        told = [sample for sample in made if "Your name is" in sample["messages"][-1]["content"]]
        assert told
        for sample in told:
            name = sample["messages"][-1]["content"].split()[-1].rstrip(".")
            assert name in sample["messages"][0]["content"]

    def test_the_same_seed_writes_the_same_file(self, tmp_path: Path) -> None:
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
            command = [sys.executable, str(TRAINING / "make_corpus.py"), str(tmp_path / name)]
            options = ["--scale", "0.008", "--only", "legs", "--seed", seed]
            subprocess.run([*command, *options], check=True, capture_output=True)
        a, b, c = ((tmp_path / name / "legs.jsonl").read_text() for name in "abc")
        assert a == b != c
        lines = a.splitlines()
        assert len(lines) == 410  # of 51,196
        assert len({json.loads(line)["messages"][0]["content"] for line in lines}) == 410
