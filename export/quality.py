"""What quantisation costs: a bundle's two roles against the fp32 model it was exported from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.window import causal_window
from bitmtp_edge.engines.base import Engine, ReplayState, Role
from bitmtp_edge.errors import UserError
from bitmtp_edge.session import Session

from .checkpoints import open_checkpoint
from .reference_model import reference_logits

_NESTED: dict[Role, str] = {"verify": "W8A8 (verify)", "draft": "W4A8 (draft)"}
_TERNARY: dict[Role, str] = {"verify": "W2A8"}
WINDOW = 500  # tokens of a text piece, each from position 0


@dataclass(frozen=True)
class Quality:
    """One model on the text. agreement and agreement_verify: share of positions whose argmax is
    the fp32 model's and the verify role's."""

    model: str
    perplexity: float
    agreement: float
    agreement_verify: float


@dataclass(frozen=True)
class _Scores:
    argmax: NDArray[np.int64]
    log_probability: NDArray[np.float64]  # of the token that follows

    def perplexity(self) -> float:
        return float(np.exp(-self.log_probability.mean()))


def measure_quality(
    session: Session,
    source: Path,
    text: str,
    positions: int,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Quality]:
    """Perplexity and argmax agreement over the first ``positions`` positions of ``text``.

    The rows: the fp32 model, the same with int8 activations alone, and the bundle's roles: W8A8
    (verify) and W4A8 (draft) of nested weights, W2A8 of ternary ones, whose roles are the same.
    Raises UserError for a text that is too short or a source of another vocabulary.
    """
    bundle, engine = session.bundle, session.engine
    tokens = session.tokenizer.encode(text, parse_special=False)
    windows = _windows(tokens, positions, bundle)
    with open_checkpoint(source) as checkpoint:
        if checkpoint.config.vocab_size != bundle.model.vocab_size:
            raise UserError(f"{source} has another vocabulary than {bundle.path}: not its source")
        progress("fp32 model")
        fp32 = _score(windows, reference_logits(checkpoint, windows))
        progress("fp32 weights, int8 activations")
        int8 = _score(windows, reference_logits(checkpoint, windows, int8_activations=True))
    rows = {"fp32": fp32, "fp32, int8 activations": int8}
    roles = _TERNARY if bundle.model.weights == "ternary" else _NESTED
    for role, name in roles.items():
        progress(name)
        rows[name] = _score(windows, _engine_logits(engine, bundle, windows, role))
    verify = rows[roles["verify"]]
    return [
        Quality(
            name,
            scores.perplexity(),
            float((scores.argmax == fp32.argmax).mean()),
            float((scores.argmax == verify.argmax).mean()),
        )
        for name, scores in rows.items()
    ]


def _windows(tokens: list[int], positions: int, bundle: Bundle) -> list[list[int]]:
    """Pieces whose positions, the last token of each apart, add up to ``positions``."""
    size = max(1, min(WINDOW, bundle.model.context - 1, bundle.replay.segments[0] - 1))
    pieces = [min(size, positions - at) + 1 for at in range(0, positions, size)]
    if len(tokens) < sum(pieces):
        raise UserError(
            f"the text has {len(tokens)} tokens, expected {sum(pieces)} for {positions} "
            "positions: give a longer text or fewer --positions"
        )
    ends = list(accumulate(pieces))
    return [tokens[end - piece : end] for end, piece in zip(ends, pieces, strict=True)]


def _engine_logits(
    engine: Engine, bundle: Bundle, windows: Sequence[Sequence[int]], role: Role
) -> Iterator[NDArray[np.float32]]:
    """Logits of every position, each window by steps of ``role`` alone over its own KV rows."""
    widest = bundle.replay.max_width
    for window in windows:
        at = 0
        while at < len(window):
            rows = min(widest, len(window) - at)
            state = ReplayState(rows, rows, engine.segment, role, logits=True)
            step = causal_window(list(window[: at + rows]), at, [], rows, rows, rows)
            logits = engine.replay(state, step).logits
            assert logits is not None  # the sampling variant
            yield logits
            engine.promote(range(rows), at)
            at += rows


def _score(windows: Sequence[Sequence[int]], blocks: Iterator[NDArray[np.float32]]) -> _Scores:
    """Scores of every position that has a next token; ``blocks`` covers the windows in order."""
    argmax, log_probability = [], []
    for window in windows:
        at = 0
        while at < len(window):
            block = next(blocks)
            for row, logits in enumerate(block[: len(window) - 1 - at]):
                wide = logits.astype(np.float64)
                peak = wide.max()
                argmax.append(int(logits.argmax()))
                normaliser = peak + np.log(np.exp(wide - peak).sum())
                log_probability.append(wide[window[at + row + 1]] - normaliser)
            at += len(block)
    return _Scores(np.array(argmax), np.array(log_probability))
