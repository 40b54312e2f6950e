"""The decoder's own time: what Python costs between two steps of an engine that does nothing."""

from __future__ import annotations

from time import perf_counter

from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.decode.replay_states import ReplayStates

from .fake_engines import NullEngine


def seconds_per_step(policy: Policy, tokens: int = 4000) -> float:
    """Mean seconds of Python for each step, draft or verify, over ``tokens`` decoded tokens."""
    states = ReplayStates(
        (tokens + 64,),
        tuple(range(1, max(2, 2 * policy.max_drafts))),
        (1, policy.max_drafts + 1),
        64,
        tokens + 64,
        draft_rows_final=True,
        mask_embeddings=1,
    )
    decoder = Decoder(NullEngine(tokens + 64), states, policy)
    decoder.prefill([0])
    began = perf_counter()
    for _ in decoder.iterations(tokens):
        pass
    return (perf_counter() - began) / sum(decoder.steps.values())
