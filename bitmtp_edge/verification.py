"""``verify``: the same random windows on every engine that works here, and who is wrong if they
differ.

Three checks. *Inputs*: a step has the window's inputs, and history rows are those promoted, bit by
bit. *Operators*: every operator of a step is fed, alone, the inputs that the engine's own step had,
through its reference body in ONNX Runtime; each output must lie within that operator's bound
(docs/numerics.md). No earlier error reaches it, so the operator at fault is named. *Steps*: each
engine plays the same windows on its own KV, and some next tokens must be the same. More cannot be
asked: one int8 code that rounds the other way changes what every later layer rounds, until two
right engines differ by as much as int8 activations cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bundle import GRAPH_FILES, Bundle
from .decode.replay_states import ReplayStates
from .decode.window import causal_window
from .engines.base import Engine, NotBuilt, ReplayState, Role, StepOutput, Window
from .engines.kv_buffer import KV_PORTS
from .engines.registry import ENGINES, EngineOptions, open_engine
from .errors import UserError, missing_extra
from .layout import unpack_kv
from .operators import DOMAIN, OPERATORS, Node

# Share of next tokens that must be the same; a wiring fault leaves almost none.
STEP_AGREEMENT = 0.25
FLOAT_BOUND = 1e-4  # of the row's largest value
PROBABILITY_BOUND = 1e-3

Arrays = Mapping[str, NDArray[Any]]


@dataclass
class EngineReport:
    """What one engine's windows showed. ``fault`` is one line, or None where all agree."""

    engine: str
    windows: int = 0
    operators: int = 0
    same_ids: int = 0
    outputs: int = 0
    fault: str | None = None


@dataclass
class Report:
    """reference: the engine the others were compared with. skipped: engine to reason."""

    reference: str
    engines: list[EngineReport] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(report.fault is None for report in self.engines)


def verify(
    bundle: Bundle,
    *,
    windows: int = 6,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Compares every engine that works here with ONNX Runtime.

    Raises UserError where ONNX Runtime or the onnx package is missing, and where a graph file and
    bundle.json list different nodes.
    """
    bodies = _Bodies(bundle)
    report = Report("onnxruntime")
    for name, kind in ENGINES.items():
        if name == report.reference:
            continue
        reason = kind.unavailable()
        if reason is not None:
            report.skipped[name] = reason
            continue
        try:
            opened = open_engine(name, bundle, EngineOptions(keep_tensors=True))
        except NotBuilt as error:
            report.skipped[name] = str(error)
            continue
        progress(f"{name}: {windows} windows")
        with opened as engine, open_engine(report.reference, bundle) as reference:
            report.engines.append(
                _compare(bundle, bodies, engine, reference, windows, seed, progress)
            )
    return report


def _compare(
    bundle: Bundle,
    bodies: _Bodies,
    engine: Engine,
    reference: Engine,
    windows: int,
    seed: int,
    progress: Callable[[str], None],
) -> EngineReport:
    report = EngineReport(engine.name)
    states = ReplayStates.of(bundle)  # an engine may have no others
    random = np.random.default_rng(seed)
    for index in range(windows):
        role: Role = "verify" if index % 2 == 0 else "draft"
        widths = bundle.replay.verify_widths if role == "verify" else bundle.replay.draft_widths
        width = int(random.choice([w for w in widths if w <= 32] or list(widths)))
        segment = bundle.replay.segments[0]
        room = min(segment, bundle.model.context) - width
        history = int(random.integers(0, max(1, min(room, 150)))) if index else 0
        tokens = random.integers(0, bundle.model.vocab_size, history + width).tolist()
        if role == "draft" and bundle.model.mask_embeddings:
            for slot in range(int(random.integers(0, width))):  # masks close a draft window
                tokens[-1 - slot] = -1 - int(random.integers(bundle.model.mask_embeddings))
        promoted = _play_history(engine, bundle, tokens[:history])
        _play_history(reference, bundle, tokens[:history])
        state = states.state(role, width, width, segment)
        kv4_length = 0
        if role == "draft" and bundle.model.kv == "nested":
            kv4_length = int(random.integers(0, history + 1))
        heads = state.outputs
        window = causal_window(tokens, history, [], width, heads, heads, kv4_length)
        _note_step(report, engine.replay(state, window), reference.replay(state, window))
        tensors = engine.tensors()
        if tensors is not None:
            fault = _check_inputs(window, promoted, tensors) or bodies.check(role, tensors)
            report.operators += len(bundle.manifest.graphs[role])
            if fault:
                report.fault = f"window {index} ({role}, M = {width}, history {history}): {fault}"
        report.windows += 1
        if report.fault:
            break
        progress(f"{engine.name}: window {index + 1} of {windows} agrees ({role}, M = {width})")
    if report.fault is None and report.same_ids < STEP_AGREEMENT * report.outputs:
        report.fault = (
            f"only {report.same_ids} of {report.outputs} next tokens are the same though every "
            "operator agrees: window, KV rows or promotion differ"
        )
    return report


def _play_history(engine: Engine, bundle: Bundle, tokens: Sequence[int]) -> Arrays:
    """Fills history rows 0 .. len(tokens)-1 by verify steps. Returns the rows of each history
    tensor as the steps made them; nothing where the engine does not show its tensors."""
    made: dict[str, list[NDArray[Any]]] = {}
    planes = [
        (node.input(history), node.output(new))
        for node in bundle.nodes("verify")
        if node.op == "NestedKVAttention"
        for history, new in KV_PORTS
        if node.input(history)
    ]
    at = 0
    while at < len(tokens):
        left = len(tokens) - at
        width = max(w for w in bundle.replay.verify_widths if w <= left)
        window = causal_window(list(tokens[: at + width]), at, [], width, 1, 1)
        engine.replay(ReplayState(width, 1, engine.segment, "verify"), window)
        tensors = engine.tensors()
        if tensors is not None:
            for history, new in planes:
                made.setdefault(history, []).append(tensors[new])
        engine.promote(range(width), at)
        at += width
    return {name: np.concatenate(rows) for name, rows in made.items()}


def _check_inputs(window: Window, promoted: Arrays, tensors: Arrays) -> str | None:
    """One line on the first input of a step that is not the window's or not what was promoted."""
    for name in ("token_ids", "positions", "mask", "head_slots"):
        if not np.array_equal(tensors[name], getattr(window, name)):
            return f"the step's input {name!r} is not the window's"
    for name in ("history_length", "kv4_length"):
        if tensors[name][0] != getattr(window, name):
            return f"the step's input {name!r} is not the window's"
    for name, rows in promoted.items():
        wrong = (tensors[name][: len(rows)] != rows).any(axis=1)
        if wrong.any():
            return f"row {int(wrong.argmax())} of {name!r} is not the one that was promoted"
    return None


def _note_step(report: EngineReport, got: StepOutput, want: StepOutput) -> None:
    same = got.token_ids[:, 0] == want.token_ids[:, 0]
    report.outputs += same.size
    report.same_ids += int(same.sum())


class _Bodies:
    """The reference bodies of a bundle's graph files, one ONNX Runtime session for each
    signature."""

    def __init__(self, bundle: Bundle) -> None:
        try:
            import onnx
        except ImportError:
            raise missing_extra("onnx", "export") from None
        from .engines.onnxruntime import import_onnxruntime

        import_onnxruntime()
        self._onnx = onnx
        self._bundle = bundle
        self._models = {}
        self._sessions: dict[tuple[Any, ...], Any] = {}
        for role, file in GRAPH_FILES.items():
            path = bundle.file(file)
            try:
                model = onnx.load(str(path), load_external_data=False)
            except Exception as error:  # protobuf's own classes
                first = str(error).partition("\n")[0]
                raise UserError(f"{path} is not an ONNX file ({first}): export again") from None
            self._check_nodes(role, model)
            self._models[role] = model

    def _check_nodes(self, role: str, model: Any) -> None:
        listed = self._bundle.nodes(role)
        path = self._bundle.file(GRAPH_FILES[role])
        if len(model.graph.node) != len(listed):
            raise UserError(
                f"{path} has {len(model.graph.node)} nodes, bundle.json lists {len(listed)}: "
                "export again"
            )
        for node, ours in zip(model.graph.node, listed, strict=True):
            same = (
                node.op_type == ours.op
                and node.domain.split(".")[0] == DOMAIN
                and list(filter(None, node.input)) == list(filter(None, ours.inputs))
                and list(filter(None, node.output)) == list(filter(None, ours.outputs))
            )
            if not same or not self._same_attributes(node, ours):
                raise UserError(
                    f"{path}: node {node.name!r} is not what bundle.json lists as {ours.name!r}: "
                    "export again"
                )

    def _same_attributes(self, node: Any, ours: Node) -> bool:
        """The file lists no absent inputs, so that ``ports`` tells which of them are there."""
        schema = OPERATORS[ours.op]
        ports = [p.name for p in schema.inputs if ours.input(p.name)]
        ports += [p.name for p in schema.outputs if ours.output(p.name)]
        wanted: dict[str, Any] = {"ports": ",".join(ports).encode()}
        for name, kind in schema.attributes.items():
            value = kind(ours.attributes[name])
            wanted[name] = (
                value.encode() if kind is str else np.float32(value) if kind is float else value
            )
        found = {a.name: self._onnx.helper.get_attribute_value(a) for a in node.attribute}
        return all(found.get(name) == value for name, value in wanted.items())

    def check(self, role: Role, tensors: Arrays) -> str | None:
        """Runs every node's body on the engine's own inputs; one line on the first that differs."""
        known = {**self._bundle.weights, **tensors}
        pairs = zip(self._bundle.nodes(role), self._models[role].graph.node, strict=True)
        for node, proto in pairs:
            wanted = [name for name in node.outputs if name in tensors]
            if node.op == "GreedyHead" and node.output("logits") not in wanted:
                wanted.append(node.output("logits"))  # what token ids are judged by
            feeds = {name: known[name] for name in node.inputs if name}
            made = self._session(role, node, proto, feeds, wanted).run(
                [f"out{list(proto.output).index(name)}" for name in wanted],
                {f"in{i}": feeds[name] for i, name in enumerate(proto.input) if name},
            )
            fault = compare(node, dict(zip(wanted, made, strict=True)), tensors)
            if fault:
                return f"{node.op} {node.name!r}: {fault}"
        return None

    def _session(
        self, role: Role, node: Node, proto: Any, feeds: Arrays, wanted: Sequence[str]
    ) -> Any:
        """A model of the one node, all of whose tensors are inputs: one serves all equal nodes."""
        present = tuple(bool(name) for name in proto.input)
        indices = tuple(list(proto.output).index(name) for name in wanted)
        key = (proto.domain, proto.op_type, present, indices)
        if key in self._sessions:
            return self._sessions[key]
        from .engines.onnxruntime import import_onnxruntime, session_options

        onnx = self._onnx
        source = self._models[role]
        alone = onnx.NodeProto()
        alone.CopyFrom(proto)
        del alone.input[:], alone.output[:]
        alone.input.extend(f"in{i}" if given else "" for i, given in enumerate(present))
        alone.output.extend(f"out{i}" if name else "" for i, name in enumerate(proto.output))
        inputs = []
        for i, name in enumerate(proto.input):
            if name:
                kind = onnx.helper.np_dtype_to_tensor_dtype(feeds[name].dtype)
                shape = [None] * feeds[name].ndim
                inputs.append(onnx.helper.make_tensor_value_info(f"in{i}", kind, shape))
        specs = OPERATORS[node.op].output_specs(node.attributes, 1, 1)
        outputs = []
        for i in indices:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(specs[i][0]))
            outputs.append(onnx.helper.make_tensor_value_info(f"out{i}", kind, None))
        graph = onnx.helper.make_graph([alone], "one_operator", inputs, outputs)
        model = onnx.helper.make_model(
            graph,
            opset_imports=source.opset_import,
            functions=[f for f in source.functions if f.domain == proto.domain],
            ir_version=source.ir_version,
        )
        try:
            self._sessions[key] = import_onnxruntime().InferenceSession(
                model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises many private classes
            first = str(error).partition("\n")[0]
            raise UserError(
                f"{self._bundle.file(GRAPH_FILES[role])}: ONNX Runtime does not take node "
                f"{proto.name!r} ({first}): export again"
            ) from None
        return self._sessions[key]


def compare(node: Node, want: Arrays, got: Arrays) -> str | None:
    """One line on the first output of ``node`` that lies outside its bound, or None.

    ``want`` has the reference body's outputs, ``got`` the engine's, by tensor name; a head's logits
    are always among the former.
    """
    if node.op == "GreedyHead":
        fault = _compare_ids(got[node.output("token_ids")], want[node.output("logits")])
        if fault:
            return fault
    if node.op == "NestedKVAttention" and node.attributes["kv"] == "nested":
        dim = int(node.attributes["head_dim"])
        rows, refinement = node.output("new_rows"), node.output("new_refinement")
        composed = [
            16 * unpack_kv(np.ascontiguousarray(side[rows]), dim).astype(np.int32)
            + unpack_kv(np.ascontiguousarray(side[refinement]), dim)
            for side in (want, got)
        ]
        off = int(np.abs(composed[0] - composed[1]).max())
        if off > 1:
            return f"new K/V codes differ by up to {off}, allowed 1"
    for port, name in zip(OPERATORS[node.op].outputs, node.outputs, strict=False):
        if name not in got or port.name in ("new_refinement", "token_ids"):
            continue
        if port.name == "new_rows" and node.attributes["kv"] == "nested":
            continue
        if port.name == "codes":
            pair = [np.ascontiguousarray(side[name]).view(np.int8) for side in (want, got)]
            off = int(np.abs(pair[0].astype(np.int32) - pair[1]).max())
            if off > 1:
                return f"int8 codes differ by up to {off}, allowed 1"
            continue
        a, b = want[name].astype(np.float64), got[name].astype(np.float64)
        if a.ndim == 1:  # one scale a row: each by itself
            a, b = a[:, None], b[:, None]
        largest = np.abs(a).max(axis=-1, keepdims=True)
        off_by = float((np.abs(a - b) / np.maximum(largest, 1e-30)).max())
        bound = PROBABILITY_BOUND if port.name in ("probability", "new_scale") else FLOAT_BOUND
        if not off_by <= bound:  # a NaN is a difference
            return (
                f"{port.name} differs by {off_by:.2e} of the row's largest value, allowed {bound}"
            )
    return None


def _compare_ids(ids: NDArray[np.int32], logits: NDArray[np.float32]) -> str | None:
    """Ids [h, k] must be of the largest logits [h, V], best first, but for near ties."""
    if ids.min() < 0 or ids.max() >= logits.shape[1]:
        return f"token_ids has {ids.min()} .. {ids.max()}, the vocabulary is {logits.shape[1]}"
    best = -np.sort(-logits, axis=1)[:, : ids.shape[1]]
    short = best - np.take_along_axis(logits, ids.astype(np.int64), axis=1)
    off_by = float((np.abs(short) / np.abs(logits).max(axis=1, keepdims=True)).max())
    if not off_by <= FLOAT_BOUND:
        return (
            f"token_ids are of logits short of the best by {off_by:.2e} of the row's largest "
            f"value, allowed {FLOAT_BOUND}"
        )
    return None
