"""Let the teacher answer everyday requests: ``make_replies.py OUT --bundle TEACHER --docs DIR``.

One {"number", "messages"} a line, for ``make_corpus.py --replies``. Replies are greedy, so the same
bundle gives the same lines. Begun again, it goes on behind the last line of OUT.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

from documents import chat
from words import FOLDER, Word, common_words

from bitmtp_edge.decode.generate import GenerationResult
from bitmtp_edge.engines.registry import EngineOptions
from bitmtp_edge.errors import UserError
from bitmtp_edge.session import Session

EVAL_CHAT = Path(__file__).parent / "eval" / "chat.jsonl"
LEAST_DISTINCT_RUNS = 0.8  # of the runs of four words in a reply
LEAST_DISTINCT_WORDS = 0.7  # of its words of four letters and more: else it goes in circles
PARAGRAPH = "\n\n"  # a reply ends with its first paragraph: the teacher often repeats itself later
_SENTENCE_END = re.compile(r'[.!?]["”]?(?=\s|$)')
# Replies about the teacher itself or the request, with markup, letters that are not English, or an
# echo.
_UNFIT = re.compile(
    r"SmolLM|Hugging Face|language model|\bAI\b|\bassistant\b|\bI('m| am| mean)\b"
    r"|in (one|two) sentences?|\*\*|[\[\]<>#_`]|[^\x00-\x7fé°–—]|\b(\w[\w-]+)(,| and| or) \3\b",
    re.IGNORECASE,
)
_GRIM = re.compile(r"weapon|gun\b|ammunition|explosive|poison|toxic|narcotic|drug|kill|corpse")


@dataclass(frozen=True)
class Request:
    """What is asked, how many tokens the reply may take, whether it is a list, and what the teacher
    is told first: it knows little itself."""

    text: str
    tokens: int
    is_list: bool = False
    hint: str = ""


# One sentence or two come out best, so they are asked for most.
_THING = (
    Request("Write one sentence about {}.", 60), Request("Describe {} in one sentence.", 60),
    Request("Describe {} in two sentences.", 80), Request("Answer briefly: what is {}?", 80),
    Request("In one sentence, tell me about {}.", 60), Request("Tell me about {}.", 120),
    Request("Write a short paragraph about {}.", 120), Request("Explain {} to a child.", 120),
)  # fmt: skip
_PASTIME = (
    Request("Give me three tips for {}.", 120, is_list=True),
    Request("Write one sentence about {}.", 60), Request("In one sentence, why is {} fun?", 60),
    Request("What are the benefits of {}?", 120), Request("What do I need for {}?", 120),
    Request("Tell me about {}.", 120), Request("Write a short paragraph about {}.", 120),
    Request("How do I start with {}?", 120), Request("Describe {} in two sentences.", 80),
)  # fmt: skip
_MATTER = (
    Request("Answer briefly: why is {} important?", 80), Request("Tell me about {}.", 120),
    Request("In one sentence, what is {}?", 60), Request("Write one sentence about {}.", 60),
    Request("Explain {} to a child.", 120), Request("Write a short paragraph about {}.", 120),
    Request("Name three facts about {}.", 120, is_list=True),
)  # fmt: skip
_PASTIMES = (
    "baking bread", "camping", "carpentry", "chess", "cleaning the house", "collecting stamps",
    "cooking", "cycling", "dancing", "drawing", "fishing", "gardening", "hiking", "juggling",
    "keeping a diary", "knitting", "learning history", "listening to others", "making friends",
    "making soup", "painting a room", "packing a bag", "photography", "planning a trip",
    "planting a tree", "playing football", "playing the guitar", "playing the piano", "pottery",
    "public speaking", "reading books", "repairing a bicycle", "running", "sailing", "saving water",
    "sewing", "shopping", "singing", "skating", "skiing", "sleeping well", "studying", "swimming",
    "taking care of a cat", "taking care of a dog", "teaching children", "tennis", "travelling",
    "typing fast", "waking up early", "walking", "washing clothes", "watching birds",
    "working from home", "writing a letter", "writing a poem", "writing code", "yoga",
)  # fmt: skip
_MATTERS = (
    "art", "autumn", "biology", "chemistry", "clean air", "climate", "courage", "democracy",
    "education", "electricity", "energy", "exercise", "family", "farming", "fire", "food",
    "freedom", "friendship", "geography", "gravity", "happiness", "health", "healthy food",
    "history", "honesty", "hope", "kindness", "language", "light", "love", "mathematics",
    "medicine", "money", "music", "nature", "patience", "peace", "philosophy", "physics", "poetry",
    "rain", "recycling", "respect", "rice", "safety", "science", "sleep", "snow", "soil", "sound",
    "space", "sport", "spring", "summer", "sunlight", "teamwork", "technology", "the Earth",
    "the Moon", "the Sun", "the brain", "the desert", "the economy", "the forest", "the heart",
    "the internet", "the ocean", "the weather", "time", "trade", "trust", "volcanoes", "water",
    "winter", "work",
)  # fmt: skip
_TOPIC_FILES = frozenset({5, 6, 12, 13, 17, 19, 20, 27})  # of words.py: no persons, no body parts


def is_topic(word: Word) -> bool:
    """Whether the teacher is asked about it: a noun for a thing of everyday life."""
    known = word.is_a_kind and word.file in _TOPIC_FILES and word.count >= 3
    plain = word.written.isalpha() and len(word.written) <= 10
    return known and plain and not _GRIM.search(f"{word.written} {word.definition}")


def requests(docs: Path) -> list[Request]:
    """Everything to ask, in a fixed random order, without the evaluation's own prompts."""
    things = {
        word.one: f"{word.one.capitalize()} is {word.definition}. "
        for word in common_words(docs)
        if is_topic(word)
    }
    lines = EVAL_CHAT.read_text(encoding="utf-8").splitlines()
    held_out = {json.loads(line)["prompt"].lower() for line in lines}
    made = {}
    for kinds, topics in ((_PASTIME, _PASTIMES), (_MATTER, _MATTERS), (_THING, things)):
        for kind, topic in product(kinds, topics):
            text = kind.text.format(topic)
            if text.lower() not in held_out:
                made[text] = replace(kind, text=text, hint=things.get(topic, ""))
    asked = [made[text] for text in sorted(made)]
    Random("replies").shuffle(asked)
    return asked


def is_varied(text: str) -> bool:
    """Whether a reply says something new as it goes on."""
    words = re.findall(r"\w+", text.lower())
    runs = list(zip(words, words[1:], words[2:], words[3:]))  # noqa: B905
    long = [word for word in words if len(word) > 3]
    few_runs = len(set(runs)) < LEAST_DISTINCT_RUNS * len(runs)
    return not few_runs and len(set(long)) >= LEAST_DISTINCT_WORDS * len(long)


def usable(text: str, ended: bool, is_list: bool) -> str | None:
    """The reply to learn, cut behind its last full sentence unless it ``ended``; None if there is
    none, or it is not fit to learn."""
    text = text.strip()
    if not ended:
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        text = text[: ends[-1]] if ends else ""
    points = re.findall(r"^\d\. \S", text, re.MULTILINE)
    whole = len(points) == 3 and ended if is_list else not points and text.endswith((".", "!", '"'))
    fits = len(text) >= 20 and whole and not _UNFIT.search(text)
    return text if fits and is_varied(text) else None


def ask(session: Session, request: Request) -> GenerationResult:
    """The teacher's greedy reply."""
    decoder = session.decoder(session.policy("ar"), context=512)
    ids = session.prompt_ids(request.hint + request.text)
    return session.reply(decoder, ids, request.tokens, session.stop_rules([PARAGRAPH]))


def resume(out: Path) -> int:
    """The number of the first request to make; takes a line that was cut off away."""
    whole = out.read_bytes() if out.exists() else b""
    kept = whole[: whole.rfind(b"\n") + 1]
    if len(kept) < len(whole):
        with out.open("r+b") as file:
            file.truncate(len(kept))
    return int(json.loads(kept.splitlines()[-1])["number"]) + 1 if kept else 0


def replies(session: Session, asked: list[Request], first: int) -> Iterator[tuple[int, str | None]]:
    """(number, usable reply or None) of each request from ``first`` on, until Ctrl-C."""
    for number in range(first, len(asked)):
        result = ask(session, asked[number])
        if result.finish_reason == "interrupted":
            return
        ended = result.finish_reason == "stop"
        yield number, usable(result.text, ended, asked[number].is_list)


def write(out: Path, session: Session, asked: list[Request]) -> None:
    """Append the usable replies to ``out``; shows a line of progress."""
    first = resume(out)
    started, kept = time.monotonic(), 0
    with out.open("a", encoding="utf-8") as file:
        for number, reply in replies(session, asked, first):
            if reply is not None:
                kept += 1
                line = {"number": number, **chat(asked[number].text, reply)}
                file.write(json.dumps(line) + "\n")
                file.flush()
            print(
                f"\r{number + 1:,} of {len(asked):,} requests, {kept:,} replies kept now, "
                f"{time.monotonic() - started:.0f} s",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip
    print(file=sys.stderr)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="JSONL file, new or to go on with")
    parser.add_argument("--bundle", type=Path, required=True, help="of SmolLM2-135M-Instruct")
    parser.add_argument("--docs", type=Path, required=True, help="folder with usr/share/wordnet")
    parser.add_argument("--count", type=int, help="of all requests, the first so many")
    options = parser.parse_args()
    if not (options.docs / FOLDER).is_dir():
        parser.error(f"--docs: need the folder with {FOLDER} of the unpacked packages")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    asked = requests(options.docs)[: options.count]
    try:
        with Session.open(options.bundle, "cpu", EngineOptions(threads=1)) as session:
            write(options.out, session, asked)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
