"""What a bundle takes from a checkpoint's text side, whatever format it came in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
"""Control tokens that end a turn, known by name.

Checkpoints often declare one end token and finish their turns with another: BitNet's config names
<|end_of_text|>, its chat template writes <|eot_id|>.
"""


@dataclass(frozen=True)
class TextAssets:
    """Tokenizer and chat template, ready for a bundle."""

    tokenizer_json: str
    chat_template: str | None
    bos_id: int | None
    stop_ids: list[int]
    """No duplicates; a declared end-of-text token comes first."""


def ordered_stop_ids(declared: Iterable[int], by_name: Iterable[int]) -> list[int]:
    """Declared ids in their order, then those known by name in ascending order, each once."""
    return list(dict.fromkeys([*declared, *sorted(by_name)]))
