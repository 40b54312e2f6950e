"""The model that this repository ships."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, Bundle
from bitmtp_edge.scoring import is_right
from bitmtp_edge.session import Session

MODEL = Path(__file__).parents[2] / "examples" / "models" / "smol-bitmtp-42m"
MOST_BYTES = 20_000_000


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    from bitmtp_edge.export.pipeline import export_bundle

    return export_bundle(MODEL, tmp_path_factory.mktemp("shipped") / "bundle")


def test_its_export_is_the_shipped_bundle_bit_for_bit(shipped: Bundle) -> None:
    """The manifest holds the SHA-256 of every other file. Where export or the version changed on
    purpose, the exported bundle.json takes the place of the shipped one."""
    exported = (shipped.path / BUNDLE_FILE).read_bytes()
    kept = (MODEL / BUNDLE_FILE).read_bytes()
    assert json.loads(exported)["files"] == json.loads(kept)["files"]
    assert exported == kept
    Bundle.open(shipped.path, check_hashes=True)


def test_it_is_small(shipped: Bundle) -> None:
    assert sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file()) <= MOST_BYTES
    assert not [path for path in MODEL.rglob("*") if path.is_symlink()]


def test_it_has_a_card_and_what_decoding_needs(shipped: Bundle) -> None:
    assert (MODEL / "README.md").is_file()
    assert shipped.model.name == MODEL.name
    assert shipped.model.weights == "ternary"
    assert shipped.decoding.policy == "hybrid"
    assert shipped.decoding.stop_ids


def test_it_adds_and_speculative_decoding_gives_the_tokens_of_ar(shipped: Bundle) -> None:
    with Session.open(shipped.path) as session:
        ids = session.prompt_ids("Calculate 64 + 49.")
        ar, speculative = (
            session.reply(session.decoder(session.policy(name)), ids, 64)
            for name in ("ar", "speculative")
        )
    assert is_right(ar.text, "113"), ar.text
    assert ar.finish_reason == "stop"
    assert speculative.token_ids == ar.token_ids
    assert speculative.iterations < ar.iterations
