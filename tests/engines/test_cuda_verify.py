"""``verify`` of bundles of every kind on a GPU: each operator inside steps of the engine against
its reference body, and the engine against the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bitmtp_edge.bundle import Bundle
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.verification import verify

from ..export.tiny_models import tiny_synthetic, tiny_ternary, write_folder

# What a kernel is chosen by: packing and groups of the projections, packing of the head, planes of
# history, head size, and which vectors there are.
KINDS: dict[str, Callable[[Path], Bundle]] = {
    "nested": lambda at: export_bundle(write_folder(at / "m").path, at / "b"),
    "nested, fp16 history": lambda at: export_bundle(
        write_folder(at / "m").path, at / "b", kv="fp16"
    ),
    "nested, bias": lambda at: export_bundle(write_folder(at / "m", "qwen2").path, at / "b"),
    "nested, norms, untied": lambda at: export_bundle(
        write_folder(at / "m", "qwen3", tie_word_embeddings=False).path, at / "b"
    ),
    "nested, heads of 128": lambda at: tiny_synthetic(at / "b", "llama-2-7b", head_dim=128),
    "ternary, groups of 64": lambda at: export_bundle(tiny_ternary(at / "m").path, at / "b"),
    "ternary, nested history": lambda at: export_bundle(
        tiny_ternary(at / "m", group_size=0).path, at / "b", kv="nested"
    ),
    "ternary, sub-norms": lambda at: tiny_synthetic(at / "b", "bitnet-2b"),
    "ternary head, heads of 128": lambda at: tiny_synthetic(at / "b", "bonsai-1.7b", head_dim=128),
}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_verify_agrees(kind: str, tmp_path: Path) -> None:
    report = verify(KINDS[kind](tmp_path), windows=4)
    found = {each.engine: each for each in report.engines}
    assert found["cuda"].operators > 0
    assert [each.fault for each in report.engines] == [None] * len(found)
