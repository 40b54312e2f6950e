"""Opens bundles with one random edit of bundle.json each, and runs a step where one opens.

A process of its own, so that a crash of the library shows: each case is told before it is tried.

    python fuzz_bundle.py BUNDLE SCRATCH SEED CASES
"""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from damage import leaves, link_copy, mutate

from bitmtp_edge.bundle import BUNDLE_FILE, Bundle
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import ReplayState
from bitmtp_edge.engines.cpu import CpuEngine
from bitmtp_edge.errors import UserError


def step(bundle: Bundle) -> None:
    """Two windows of each role, the widest and the narrowest, up to the end of the segment."""
    with CpuEngine(bundle, threads=1) as engine:
        replay = bundle.replay
        for role, widths in (("verify", replay.verify_widths), ("draft", replay.draft_widths)):
            for width, history in ((widths[0], 0), (widths[-1], engine.segment)):
                if width > 512:
                    continue  # well formed, only long
                state = ReplayState(width, width, engine.segment, role, logits=True)
                tokens = [2**30] * history + list(range(-1, width - 1))
                engine.replay(state, causal_window(tokens, history, [], width, width, width))
                engine.promote(range(min(width, engine.segment)), 0)


def weighty(value: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Paths to change: those that steer an engine as often as the many tensors' and files'."""
    paths = leaves(value)
    steering = [p for p in paths if p[0] in ("model", "replay", "decoding") or "attributes" in p]
    return paths + steering * max(1, len(paths) // len(steering))


def main() -> None:
    source, scratch, seed, cases = sys.argv[1:]
    folder = link_copy(Path(source), Path(scratch))
    original = json.loads((folder / BUNDLE_FILE).read_text())
    paths = weighty(original)
    opened = ran = 0
    for case in range(int(cases)):
        value = copy.deepcopy(original)
        what = mutate(value, paths, random.Random(f"{seed} {case}"))
        print(f"case {case}: {what!a}", flush=True)
        (folder / BUNDLE_FILE).write_text(json.dumps(value))
        try:
            bundle = Bundle.open(folder, check_hashes=case % 16 == 0)
            opened += 1
            step(bundle)
            ran += 1
        except UserError as error:
            assert "\n" not in str(error), error
    print(f"opened {opened} ran {ran}")


if __name__ == "__main__":
    main()
