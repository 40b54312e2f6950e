"""The bundle: the folder that export writes and every engine reads (docs/bundle.md).

``bundle.json`` says everything; the other files are data. Nothing in it is executed or unpickled,
no path leaves the folder, and a mismatch is refused before memory is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decode import POLICIES
from .errors import UserError
from .graph_check import check_facts, check_nodes
from .operators import Node
from .records import read_record

FORMAT = "bitmtp-bundle"
VERSION = 2
ALIGNMENT = 256
BUNDLE_FILE = "bundle.json"
WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
MASK_TABLE = "mask_embeddings"  # the tensor of the trained masks
GRAPH_FILES = {"draft": "draft.onnx", "verify": "verify.onnx"}
BLOCK_ATTENTION = ("causal", "full")
_ITEM_BYTES = {"int32": 4, "float32": 4, "float16": 2}
_MOST_AXES = 3
# Far above any use; below them no size that an engine computes leaves 64 bits.
_MOST_ROWS = {"segments": 1 << 28, "draft_widths": 1 << 12, "verify_widths": 1 << 12}


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of the model.

    weights ("nested", "ternary") and kv ("nested", "fp16"): how they are stored.
    draft_rows_final: a draft step's row has the bits of a verify step's. mask_embeddings: rows P of
    the trained mask table, 0 where the model has none; a block's i-th mask is row i, or the only
    row. block_attention: "causal", a mask sees the earlier masks of its block, or "full", all.
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    weights: str
    kv: str
    tied_embeddings: bool
    draft_rows_final: bool
    mask_embeddings: int
    block_attention: str


@dataclass(frozen=True)
class ReplayConfig:
    """Replay states (docs/architecture.md): geometric history segments and the widths of each role,
    ascending."""

    segments: tuple[int, ...]
    draft_widths: tuple[int, ...]
    verify_widths: tuple[int, ...]

    @property
    def max_width(self) -> int:
        """M_max: workspace rows of every KV buffer, and the prefill chunk."""
        return max(self.draft_widths + self.verify_widths)


@dataclass(frozen=True)
class DecodingDefaults:
    """What ``run`` and ``chat`` do unless told otherwise.

    policy: one of :data:`decode.POLICIES`. gamma: drafts an iteration of policy nested; None where
    the weights have one plane. block: tokens D of a multi-token draft, the block that the masks
    were trained for; tau and min_prefix: the probability that makes a draft confident, and the
    shortest confident prefix that policy hybrid commits unverified. All three None without masks.
    kv4_from_segment: segments of at least this capacity draft from the KV base plane, all but the
    newest ``recent_n`` tokens; None: never. stop_ids end a reply. bos_id is what a chat template
    means by ``bos_token``; the tokenizer itself puts it before a plain text where the checkpoint
    asks for it.
    """

    policy: str
    gamma: int | None
    block: int | None
    tau: float | None
    min_prefix: int | None
    kv4_from_segment: int | None
    recent_n: int
    stop_ids: tuple[int, ...]
    bos_id: int | None


@dataclass(frozen=True)
class TensorEntry:
    """One tensor in weights.bin: ``bytes`` at ``offset``, a multiple of 256."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class NodeRecord:
    """A graph node as bundle.json lists it."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileEntry:
    """Size and SHA-256 (hex) of one file of the bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """bundle.json."""

    format: str
    version: int
    sdk: str
    model: ModelFacts
    operators: tuple[str, ...]
    replay: ReplayConfig
    decoding: DecodingDefaults
    tensors: dict[str, TensorEntry]
    graphs: dict[str, tuple[NodeRecord, ...]]
    files: dict[str, FileEntry]

    def to_json(self) -> str:
        """The text of bundle.json; the same manifest always gives the same text."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file in hex, read in pieces; ``progress`` gets the bytes of each."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()


class Bundle:
    """An opened bundle. :meth:`open` checks it; :attr:`weights` maps the tensors without copying
    them."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.model = manifest.model
        self.replay = manifest.replay
        self.decoding = manifest.decoding
        self.tensors = manifest.tensors

    @classmethod
    def open(cls, path: str | Path, *, check_hashes: bool = True) -> Bundle:
        """Opens and checks the bundle at ``path``.

        Raises UserError: not a bundle, another version, a file missing, truncated or changed, a
        path outside the folder, a graph that does not fit its tensors. ``check_hashes=False`` skips
        reading the files through (sizes are still checked).
        """
        root = Path(path)
        text = _read_manifest_text(root)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also a number without end
            raise UserError(
                f"{root / BUNDLE_FILE} is not JSON ({error}): export the bundle again"
            ) from None
        where = str(root / BUNDLE_FILE)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise UserError(f"{where} is not a bitmtp-edge bundle: its format is not {FORMAT!r}")
        version = value.get("version")
        if type(version) is not int or version != VERSION:
            found = version if type(version) is int else "is not a number"
            raise UserError(
                f"{where}: bundle version {found}, this SDK reads {VERSION}: export again"
            )
        manifest = read_record(Manifest, value, where)
        bundle = cls(root, manifest)
        bundle._check_files(check_hashes)
        bundle._check_model(where)
        bundle._check_tensors(where)
        bundle._check_mask_table(where)
        shapes = {name: entry.shape for name, entry in bundle.tensors.items()}
        graphs = {role: bundle.nodes(role) for role in GRAPH_FILES}
        for role, nodes in graphs.items():
            check_nodes(nodes, bundle.model, shapes, f"{where}: graphs.{role}")
        check_facts(graphs, manifest, where)
        return bundle

    def file(self, name: str) -> Path:
        """Path of a file that bundle.json lists."""
        if name not in self.manifest.files:
            raise UserError(f"{self.path / BUNDLE_FILE} lists no {name}: export the bundle again")
        return self.path / name

    def nodes(self, role: str) -> list[Node]:
        """Nodes of the graph of ``role``, in order of execution."""
        return [Node(**vars(record)) for record in self.manifest.graphs[role]]

    @cached_property
    def weights(self) -> Mapping[str, NDArray[Any]]:
        """Read-only arrays over the mapped weights.bin, by tensor name."""
        with self.file(WEIGHTS_FILE).open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return {
            name: np.frombuffer(mapped, entry.dtype, math.prod(entry.shape), entry.offset).reshape(
                entry.shape
            )
            for name, entry in self.tensors.items()
        }

    def _check_files(self, check_hashes: bool) -> None:
        root = self.path.resolve()
        required = [WEIGHTS_FILE, TOKENIZER_FILE, *GRAPH_FILES.values()]
        for name in required:
            if name not in self.manifest.files:
                raise UserError(
                    f"{self.path / BUNDLE_FILE}: files: {name} is not listed: export again"
                )
        for name, entry in self.manifest.files.items():
            pure = PurePosixPath(name)
            outside = pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name
            path = self.path / name
            try:
                outside = outside or not (root / name).resolve().is_relative_to(root)
                present = not outside and path.is_file()
            except (OSError, RuntimeError) as error:  # a name too long, links in a circle
                raise UserError(
                    f"{self.path / BUNDLE_FILE}: files: {name!r} cannot be looked up ({error})"
                ) from None
            if outside:
                raise UserError(
                    f"{self.path / BUNDLE_FILE}: files: {name!r} leaves the bundle's folder"
                )
            if not present:
                raise UserError(f"{path} is missing: copy the whole bundle, or export it again")
            size = path.stat().st_size
            if size != entry.bytes:
                raise UserError(
                    f"{path}: {size} bytes, bundle.json says {entry.bytes}: truncated or changed; "
                    "copy it again"
                )
            if check_hashes and sha256_of(path) != entry.sha256:
                raise UserError(
                    f"{path}: SHA-256 differs from bundle.json: damaged or changed; copy it again"
                )

    def _check_model(self, where: str) -> None:
        model, replay = self.model, self.replay
        for name, number in vars(model).items():
            least = 0 if name == "mask_embeddings" else 1
            if type(number) is int and not least <= number < 2**31:
                raise UserError(
                    f"{where}: model.{name} is {number}, expected {least} .. {2**31 - 1}"
                )
        if model.block_attention not in BLOCK_ATTENTION:
            raise UserError(
                f"{where}: model.block_attention is {model.block_attention!r}, expected "
                f"{' or '.join(BLOCK_ATTENTION)}"
            )
        if self.manifest.graphs.keys() != GRAPH_FILES.keys():
            raise UserError(
                f"{where}: graphs: expected draft and verify, found {sorted(self.manifest.graphs)}"
            )
        for name, most in _MOST_ROWS.items():
            numbers = getattr(replay, name)
            ascending = list(numbers) == sorted(set(numbers))
            if not numbers or not ascending or not 1 <= numbers[0] <= numbers[-1] <= most:
                raise UserError(
                    f"{where}: replay.{name} is {list(numbers)}, expected ascending sizes from 1 "
                    f"to {most}"
                )
        if 1 not in replay.verify_widths:
            raise UserError(f"{where}: replay.verify_widths lacks width 1, the AR step")
        self._check_decoding(where)

    def _check_decoding(self, where: str) -> None:
        model, decoding = self.model, self.decoding
        for name, ids in (("stop_ids", decoding.stop_ids), ("bos_id", (decoding.bos_id,))):
            stray = [i for i in ids if i is not None and not 0 <= i < model.vocab_size]
            if stray:
                raise UserError(
                    f"{where}: decoding.{name}: {stray[0]} is outside the vocabulary of "
                    f"{model.vocab_size}"
                )
        for name, least in (("gamma", 1), ("recent_n", 0), ("kv4_from_segment", 1)):
            value = getattr(decoding, name)
            if value is not None and not least <= value < 2**31:
                raise UserError(
                    f"{where}: decoding.{name} is {value}, expected {least} .. {2**31 - 1}"
                )
        self._check_block(where)
        needs = {"ar": True, "nested": decoding.gamma is not None}
        if decoding.policy not in POLICIES or not needs.get(
            decoding.policy, decoding.block is not None
        ):
            raise UserError(
                f"{where}: decoding.policy is {decoding.policy!r}, expected one of "
                f"{', '.join(POLICIES)}; nested needs a gamma, all but ar and nested a block"
            )

    def _check_block(self, where: str) -> None:
        model, decoding = self.model, self.decoding
        block, tau, least = decoding.block, decoding.tau, decoding.min_prefix
        given = {name: getattr(decoding, name) for name in ("block", "tau", "min_prefix")}
        masks = model.mask_embeddings > 0
        for name, value in given.items():
            if (value is not None) != masks:
                raise UserError(
                    f"{where}: decoding.{name} is {'null' if value is None else value}, but the "
                    f"model has {model.mask_embeddings} mask embeddings: these go together"
                )
        if block is not None and (
            block < 2 or (model.mask_embeddings != 1 and block - 1 > model.mask_embeddings)
        ):
            raise UserError(
                f"{where}: decoding.block is {block}, expected 2 or more, and a mask embedding (or "
                f"one for all) for every token after the first: there are {model.mask_embeddings}"
            )
        if tau is not None and not 0 < tau <= 1:
            raise UserError(f"{where}: decoding.tau is {tau}, expected above 0 and at most 1")
        if least is not None and not 1 <= least <= (block or 0):
            raise UserError(f"{where}: decoding.min_prefix is {least}, expected 1 .. {block}")

    def _check_tensors(self, where: str) -> None:
        size = self.manifest.files[WEIGHTS_FILE].bytes
        for name, entry in self.tensors.items():
            at = f"{where}: tensors[{name!r}]"
            if entry.dtype not in _ITEM_BYTES:
                raise UserError(
                    f"{at}: dtype {entry.dtype!r}, expected one of {', '.join(_ITEM_BYTES)}"
                )
            if not 1 <= len(entry.shape) <= _MOST_AXES or any(n < 1 for n in entry.shape):
                raise UserError(
                    f"{at}: shape {list(entry.shape)}, expected 1 to {_MOST_AXES} axes, none empty"
                )
            if math.prod(entry.shape) * _ITEM_BYTES[entry.dtype] != entry.bytes:
                raise UserError(
                    f"{at}: {entry.bytes} bytes do not hold {entry.dtype}{list(entry.shape)}"
                )
            if entry.offset < 0 or entry.offset % ALIGNMENT or entry.offset + entry.bytes > size:
                raise UserError(
                    f"{at}: offset {entry.offset} is unaligned or past the end of {WEIGHTS_FILE}"
                )

    def _check_mask_table(self, where: str) -> None:
        """The trained masks are one tensor, which the draft graph's embedding reads."""
        masks, width = self.model.mask_embeddings, self.model.hidden_size
        entry = self.tensors.get(MASK_TABLE)
        found = None if entry is None else (entry.dtype, entry.shape)
        if found != (("float32", (masks, width)) if masks else None):
            told = "missing" if found is None else f"{found[0]}{list(found[1])}"
            expected = f"float32[{masks}, {width}]" if masks else "none without masks"
            raise UserError(f"{where}: tensors[{MASK_TABLE!r}] is {told}, expected {expected}")
        for node in self.manifest.graphs["draft"]:
            if masks and node.op == "TokenEmbedding" and MASK_TABLE not in node.inputs:
                raise UserError(
                    f"{where}: graphs.draft: node {node.name!r} does not read {MASK_TABLE!r}: "
                    "export again"
                )


def _read_manifest_text(root: Path) -> str:
    path = root / BUNDLE_FILE
    if not root.exists():
        target = shlex.quote(str(root))
        raise UserError(
            f"{root} does not exist: make a bundle with  bitmtp-edge export SRC -o {target}"
        )
    if not path.is_file():
        raise UserError(
            f"{root} is not a bundle: it has no {BUNDLE_FILE}; make one with  bitmtp-edge export"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: damaged; export the bundle again") from None
