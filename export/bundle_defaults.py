"""What follows from how a checkpoint holds its weights: the bundle's roles, replay widths and
decoding defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitmtp_edge.errors import UserError

from .checkpoints.base import Checkpoint
from .checkpoints.ternary import MultiToken, TernaryCheckpoint

CHUNK = 128  # the widest step of a prefill
# A draft step of the CPU engine costs half an AR step, so with round-to-nearest bases two drafts
# pay best. The paper's 4, on GPUs and better bases, has its verify width too.
GAMMA = 2
TAU = 0.9
# BitMTP's m. Which one pays follows from what a draft and a verify step cost on the machine; until
# that is measured, a confidence commit takes what one verify step is sure to give, and one more.
MIN_PREFIX = 2
VERIFY_WIDTHS = (1, 2, 3, 5, 9, 17, CHUNK)


@dataclass(frozen=True)
class BundleDefaults:
    """weights: "nested" or "ternary". kv: "nested" or "fp16", unless the user says otherwise.
    draft_rows_final: the draft role reads the same weights as the verify role. gamma: None where
    it does. multi_token: None without mask embeddings.
    """

    weights: str
    kv: str
    policy: str
    draft_rows_final: bool
    draft_widths: tuple[int, ...] = (1,)
    verify_widths: tuple[int, ...] = VERIFY_WIDTHS
    gamma: int | None = None
    multi_token: MultiToken | None = None


NESTED_DEFAULTS = BundleDefaults("nested", "nested", "nested", draft_rows_final=False, gamma=GAMMA)


def bundle_defaults(checkpoint: Checkpoint, asked: str | None) -> BundleDefaults:
    """What a checkpoint's bundle is, unless the user says otherwise. UserError where the weights
    ``asked`` for are others than it can give (None: whatever it has).
    """
    if isinstance(checkpoint, TernaryCheckpoint):
        defaults = ternary_defaults(checkpoint.multi_token)
    else:
        defaults = NESTED_DEFAULTS
    if asked not in (None, defaults.weights):
        held = "ternary codes" if defaults.weights == "ternary" else "no ternary codes"
        raise UserError(
            f"{checkpoint.where} holds {held}: it is exported with --weights {defaults.weights}, "
            f"not {asked}"
        )
    return defaults


def ternary_defaults(multi_token: MultiToken | None) -> BundleDefaults:
    """Of ternary weights, and of the masks that the model was trained with."""
    if multi_token is None:
        return BundleDefaults("ternary", "fp16", "ar", draft_rows_final=True)
    block = multi_token.block
    return BundleDefaults(
        "ternary",
        "fp16",
        "hybrid",
        draft_rows_final=True,
        # The pending suffix, up to a block long, and the masks of the tokens after the first.
        draft_widths=tuple(range(1, 2 * block)),
        verify_widths=_block_widths(block),
        multi_token=multi_token,
    )


def _block_widths(block: int) -> tuple[int, ...]:
    """Verify widths for the anchor and the drafts of ``block`` and of every smaller power of two;
    2D + 1 holds tentative rows before them, and the rest are a prefill's.
    """
    widths = {1, 2, 3, block + 1, 2 * block + 1, CHUNK}
    widths.update((1 << power) + 1 for power in range(block.bit_length()))
    return tuple(sorted(widths))
