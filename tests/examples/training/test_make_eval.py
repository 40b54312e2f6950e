"""The evaluation files that make_eval.py wrote."""

from __future__ import annotations

import json

from .conftest import EVAL

COUNTS = {
    "gsm_seen": 200, "gsm_unseen": 150, "arithmetic": 100, "legs": 100, "sorting": 100,
    "reversal": 100, "humaneval": 60, "chat": 60,
}  # fmt: skip


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
