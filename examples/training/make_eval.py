"""Write the evaluation files: ``make_eval.py OUT --docs DIR --humaneval FILE``.

One {"task", "prompt", "answer"} a line. ``answer`` is what scoring compares; null where a task has
tokens and rates to measure but no answer. "apart": true marks a task that no average counts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import documents
from tasks import HELD_OUT_TEMPLATES, TASKS, Item, final_answer, gsm_item, gsm_items, seen_templates

SEED = "held out"
APART = ("gsm_unseen",)
_EASY_PAGE = re.compile(r"python3.11/html/(library|tutorial|howto)/|django-doc/html/topics/|/book/")
# Drawn once from the words that WordNet's tagged texts use; words.py leaves them out.
_MEANINGS = (
    'What does "amount" mean?', 'What does the word "formula" mean?', "Define ruffle.",
    "Define journalese.", "What is the meaning of might?", 'What does the word "basically" mean?',
    'What does "cell" mean?', "Explain the word rule.", "What is the meaning of pool?",
    "What is the meaning of stylistic?", "Define tightly.", "Explain the word childishly.",
    'What does the word "Syria" mean?', "Define lusty.", "Explain the word not.",
    "Give me a definition of beatnik.", "Define schoolmaster.", "Give me a definition of puckish.",
    "What is the meaning of prostrate?", 'What does the word "insight" mean?',
)  # fmt: skip
_EVERYDAY = (
    "What should I pack for a weekend in the mountains?", "How do I boil an egg?",
    "Why is it important to sleep enough?", "Write a short story about a lost dog.",
    "Give me three tips for learning a language.", "How can I save money on food?",
    "What is the difference between a lake and a river?", "Write a polite e-mail to say I am ill.",
    "Describe a forest in autumn.", "What makes a good friend?", "How does a bicycle stay upright?",
    "Suggest a name for a grey cat.", "Explain what rain is to a child.",
    "What can I cook with rice and eggs?", "How do I clean a window?",
    "Write two sentences about the sea.", "Why do leaves fall?", "How do plants drink?",
    "Give me an idea for a birthday present.", "What is a good way to start the day?",
    "Summarise why reading is useful.", "How do I stay calm before an exam?",
    "List four things found in a kitchen.", "Can you explain what a map is for?",
    "What would you say to someone who is nervous?",
)  # fmt: skip


def distinct(items: Iterable[Item], count: int) -> list[Item]:
    """The first ``count`` items with prompts of their own."""
    found: dict[str, Item] = {}
    for item in items:
        found.setdefault(item.prompt, item)
        if len(found) == count:
            break
    return list(found.values())


def scored() -> dict[str, list[Item]]:
    """The items that have an answer, by file name."""
    unseen: list[Item] = []
    for template in HELD_OUT_TEMPLATES:
        unseen += distinct(gsm_items(Random(f"{SEED}/{template}"), [template]), 10)
    usable = [t for t in seen_templates() if _works(t)]
    return {
        "gsm_seen": distinct(gsm_items(Random(f"{SEED}/gsm"), usable), 200),
        "gsm_unseen": unseen,
        **{
            name: distinct(TASKS[name](Random(f"{SEED}/{name}")), 100)
            for name in TASKS
            if name != "gsm"
        },
    }


def _works(template: int) -> bool:
    """Whether the template's solutions are right at all: one of gsm_symbolic's never is."""
    rng = Random(0)
    return any(gsm_item(rng, template) is not None for _ in range(50))


def humaneval(path: Path, count: int = 60) -> list[str]:
    """Prompts of HumanEval as requests to complete a function."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        problems = [json.loads(line)["prompt"].strip() for line in lines]
    chosen = sorted(Random(SEED).sample(range(len(problems)), count))
    return [f"Complete this Python function:\n\n```python\n{problems[i]}\n```" for i in chosen]


def chat_prompts(docs: Path) -> list[str]:
    """20 words to explain, 15 questions about documentation, 25 everyday requests."""
    rng = Random(SEED)
    pages = [path for path in documents.pages(docs) if _EASY_PAGE.search(path.as_posix())]
    asked: list[str] = []
    for path in rng.sample(pages, 120):
        found = list(documents.page_chats(documents.page_blocks(path)))
        asked += [rng.choice(found)["messages"][0]["content"]] if found else []
    return [*_MEANINGS, *asked[:15], *_EVERYDAY]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--docs", type=Path, required=True)
    parser.add_argument("--humaneval", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    records: dict[str, list[dict[str, Any]]] = {
        name: [
            {"task": name, "prompt": item.prompt, "answer": final_answer(item.answer)}
            for item in items
        ]
        for name, items in scored().items()
    }
    for name, prompts in {
        "humaneval": humaneval(options.humaneval),
        "chat": chat_prompts(options.docs),
    }.items():
        records[name] = [{"task": name, "prompt": text, "answer": None} for text in prompts]
    for name in APART:
        records[name] = [{**line, "apart": True} for line in records[name]]
    for name, lines in records.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (options.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"{name}: {len(lines)} prompts")


if __name__ == "__main__":
    main()
