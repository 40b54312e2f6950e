"""Write a text that a very small model learns in a minute: ``python rehearsal_text.py FOLDER``.

``FOLDER/counting.jsonl``, which rehearsal.toml reads: requests to count, and the counting.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

SAMPLES = 4000
LENGTH = 12  # numbers of a reply


def sample(start: int) -> dict[str, object]:
    """A request to count on from ``start``, and the reply."""
    reply = " ".join(str(number) for number in range(start, start + LENGTH))
    return {
        "messages": [
            {"role": "user", "content": f"Count on from {start}."},
            {"role": "assistant", "content": reply},
        ]
    }


def main() -> None:
    """The command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: rehearsal_text.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    draw = Random(1)
    lines = [json.dumps(sample(draw.randrange(90))) for _ in range(SAMPLES)]
    (folder / "counting.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
