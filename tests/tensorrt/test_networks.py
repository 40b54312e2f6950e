"""What ``build`` hands to TensorRT, node by node through TensorRT's order of calls: the fields that
a network has for a plugin make one, and its outputs are those of the network."""

from __future__ import annotations

from itertools import product

import pytest

from bitmtp_edge.building.network import fixed_network
from bitmtp_edge.building.states import chosen_states
from bitmtp_edge.bundle import Bundle

from ..fakes.network_step import NetworkStep
from ..fakes.real_gpu import PluginRunner
from .conformance import Session

BUNDLES = ("tiny_bundle", "fp16_bundle", "tiny_ternary_bundle")


@pytest.mark.parametrize(
    ("name", "pattern"), [*product(BUNDLES, ("draft-*-c512*", "verify-*-c512*"))]
)
def test_every_network(
    request: pytest.FixtureRequest, session: Session, name: str, pattern: str
) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    for state in chosen_states(bundle, [pattern]):
        runner = PluginRunner(session, NetworkStep(fixed_network(bundle, state)))
        assert runner.workspace_bytes > 0
