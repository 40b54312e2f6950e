"""What tests of the CUDA engine share beside fixtures: one on the host, tokens, decoding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.decode.loop import Decoder
from bitmtp_edge.decode.policies import Policy
from bitmtp_edge.decode.replay_states import ReplayStates
from bitmtp_edge.engines.base import StepOutput
from bitmtp_edge.engines.cuda import CudaEngine

from .host_device import HostDevice, HostLibrary
from .steps import output_bits

TOKENS: list[int] = np.random.default_rng(9).integers(0, 301, 1000).tolist()
HISTORY = 20

Open = Callable[..., CudaEngine]


def on_host(bundle: Bundle, keep_tensors: bool = False) -> CudaEngine:
    device = HostDevice()
    library = HostLibrary(device)
    return CudaEngine(bundle, keep_tensors=keep_tensors, device=device, library=library)


def bits(output: StepOutput) -> list[tuple[bytes, ...]]:
    return [output_bits(output, row) for row in range(len(output.token_ids))]


def decode(
    engine: CudaEngine, bundle: Bundle, policy: Policy, count: int, at: int = 0
) -> list[int]:
    decoder = Decoder(engine, ReplayStates.of(bundle), policy)
    prompt = TOKENS[at : at + 12]
    decoder.prefill(prompt)
    for _ in decoder.iterations(len(prompt) + count):
        pass
    return decoder.prefix.tokens[len(prompt) :]
