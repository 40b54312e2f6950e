"""The prompts that the README measures with: of the kinds that the shipped model knows."""

from __future__ import annotations

import json
from pathlib import Path

from bitmtp_edge.benchmark import read_prompts

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_maths_prompts_are_eight_that_no_table_scores() -> None:
    prompts = read_prompts(EXAMPLES / "maths_prompts.jsonl")
    assert len(prompts) == len(set(prompts)) == 8
    scored = {
        json.loads(line)["prompt"]
        for path in (EXAMPLES / "training" / "eval").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    }
    assert scored and not scored & set(prompts)
