"""The folder of a bundle: weights, graphs, tokenizer and bundle.json, whatever they are made from.

It has another name beside the target and gets its own only when all of it is there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bitmtp_edge import __version__
from bitmtp_edge.bundle import (
    BUNDLE_FILE,
    FORMAT,
    GRAPH_FILES,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    VERSION,
    WEIGHTS_FILE,
    Bundle,
    DecodingDefaults,
    FileEntry,
    Manifest,
    ModelFacts,
    NodeRecord,
    ReplayConfig,
    TensorEntry,
    sha256_of,
)
from bitmtp_edge.errors import UserError, missing_extra
from bitmtp_edge.operators import Node

from .bundle_defaults import CHUNK, MIN_PREFIX, TAU, BundleDefaults
from .checkpoints.base import ModelConfig
from .checkpoints.rotary import rotary_table
from .checkpoints.text_assets import TextAssets
from .graph import build_model, build_nodes
from .model_tensors import ModelTensors
from .target_folder import LOCK_FILE, new_folder, publish
from .weights_file import WeightsWriter, lay_out

FIRST_SEGMENT = 512
# Below this a KV cache is small beside the weights, and reading its base plane alone saves nothing
# worth the acceptance.
KV4_FROM_SEGMENT = 4096
RECENT_TOKENS = 128
ROTARY_BLOCK = 4096
SPARE_BYTES = 16 << 20  # what the graphs and bundle.json may take


@dataclass(frozen=True)
class Contents:
    """What a bundle holds. name: of the model. kv: "nested" or "fp16". context: tokens it serves.
    where: what the model comes from, for messages."""

    name: str
    config: ModelConfig
    defaults: BundleDefaults
    kv: str
    context: int
    tensors: ModelTensors
    text: TextAssets
    where: str


def require_onnx() -> None:
    """UserError where the package is missing: told before the weights, loaded after them."""
    if importlib.util.find_spec("onnx") is None:
        raise missing_extra("onnx", "export")


def replay_config(defaults: BundleDefaults, context: int) -> ReplayConfig:
    """The replay states of a bundle that serves ``context`` tokens."""
    return ReplayConfig(_segments(context), defaults.draft_widths, defaults.verify_widths)


def write_bundle(
    contents: Contents, target: Path, force: bool, fill: Callable[[WeightsWriter], None]
) -> Bundle:
    """Writes the bundle ``target``; ``fill`` writes all of its tensors but the rotary table.

    force: replace an existing bundle. On any failure the target is untouched. Raises UserError for
    a target that may not be replaced and a disk too small.
    """
    text_files = _text_files(contents.text, contents.where)
    entries, size = lay_out(contents.tensors.specs())
    needed = size + sum(map(len, text_files.values())) + SPARE_BYTES
    with new_folder(target, needed, force) as folder:
        with WeightsWriter(folder / WEIGHTS_FILE, entries, size) as writer:
            fill(writer)
            _write_rotary(writer, contents)
        for name, data in text_files.items():
            _write(folder / name, data)
        graphs = graphs_of(contents)
        for role, nodes in graphs.items():
            model = build_model(nodes, entries, role)
            _write(folder / GRAPH_FILES[role], model.SerializeToString(deterministic=True))
        manifest = manifest_of(contents, graphs, entries, _file_entries(folder))
        _write(folder / BUNDLE_FILE, manifest.to_json().encode())
        Bundle.open(folder, check_hashes=False)
        publish(folder, target)
    return Bundle.open(target, check_hashes=False)


def graphs_of(contents: Contents) -> dict[str, list[Node]]:
    """Nodes of each role's graph."""
    return {
        role: build_nodes(contents.config, contents.tensors, role, contents.kv)
        for role in GRAPH_FILES
    }


def manifest_of(
    contents: Contents,
    graphs: Mapping[str, Sequence[Node]],
    entries: dict[str, TensorEntry],
    files: dict[str, FileEntry],
) -> Manifest:
    """bundle.json of ``contents``, whose tensors lie at ``entries``."""
    return Manifest(
        FORMAT,
        VERSION,
        __version__,
        _facts(contents),
        tuple(sorted({node.op for nodes in graphs.values() for node in nodes})),
        replay_config(contents.defaults, contents.context),
        _decoding(contents),
        entries,
        {role: tuple(_record(node) for node in nodes) for role, nodes in graphs.items()},
        files,
    )


def _segments(context: int) -> tuple[int, ...]:
    """History capacities: doubling from 512, the last one no longer than ``context`` asks for in
    whole chunks.
    """
    longest = -(-context // CHUNK) * CHUNK
    segments, segment = [], FIRST_SEGMENT
    while segment < longest:
        segments.append(segment)
        segment *= 2
    return (*segments, longest)


def _facts(contents: Contents) -> ModelFacts:
    config, defaults = contents.config, contents.defaults
    multi_token = defaults.multi_token
    return ModelFacts(
        name=contents.name,
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        context=contents.context,
        weights=defaults.weights,
        kv=contents.kv,
        tied_embeddings=config.tied,
        draft_rows_final=defaults.draft_rows_final,
        mask_embeddings=multi_token.masks if multi_token else 0,
        block_attention=multi_token.attention if multi_token else "causal",
    )


def _decoding(contents: Contents) -> DecodingDefaults:
    text, defaults = contents.text, contents.defaults
    multi_token = defaults.multi_token
    return DecodingDefaults(
        policy=defaults.policy,
        gamma=defaults.gamma,
        block=multi_token.block if multi_token else None,
        tau=TAU if multi_token else None,
        min_prefix=MIN_PREFIX if multi_token else None,
        # Drafts that read KV4 would not be final, and a ternary model's are worth more as they are.
        kv4_from_segment=(
            KV4_FROM_SEGMENT if contents.kv == "nested" and not defaults.draft_rows_final else None
        ),
        recent_n=RECENT_TOKENS,
        stop_ids=tuple(text.stop_ids),
        bos_id=text.bos_id,
    )


def _record(node: Node) -> NodeRecord:
    return NodeRecord(node.op, node.name, node.inputs, node.outputs, dict(node.attributes))


def _write_rotary(writer: WeightsWriter, contents: Contents) -> None:
    rope, head_dim = contents.config.rope, contents.tensors.head_dim
    positions = contents.tensors.positions
    for first in range(0, positions, ROTARY_BLOCK):
        last = min(first + ROTARY_BLOCK, positions)
        angles = rotary_table(rope, head_dim, first, last)
        if not np.isfinite(angles).all():
            raise UserError(
                f"{contents.where}: rotary angles are not finite; mend the settings: {rope}"
            )
        writer.write("rotary", angles, first)


def _text_files(text: TextAssets, where: str) -> dict[str, bytes]:
    contents = {TOKENIZER_FILE: text.tokenizer_json, TEMPLATE_FILE: text.chat_template}
    try:
        return {name: value.encode() for name, value in contents.items() if value is not None}
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: the tokenizer or the chat template holds half a surrogate pair, which is "
            "no text; repair that file"
        ) from None


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _file_entries(folder: Path) -> dict[str, FileEntry]:
    paths = sorted(path for path in folder.iterdir() if path.name != LOCK_FILE)
    return {path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in paths}
