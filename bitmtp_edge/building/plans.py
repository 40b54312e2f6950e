"""Engines for TensorRT, in the bundle's folder: built where they are missing or do not fit.

What is built is kept at once, plan by plan, so that an interrupted build goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bundle import WEIGHTS_FILE, Bundle, sha256_of
from ..engines.base import ReplayState
from ..engines.pycuda_device import PycudaDevice
from ..engines.tensorrt_api import started
from ..engines.tensorrt_manifest import (
    MANIFEST_FILE,
    SCHEMA,
    BuiltFor,
    PlanEntry,
    PlanManifest,
    built_for,
    check_folder,
    is_there,
    plan_folder,
    plan_path,
    read_manifest,
    state_name,
    write_manifest,
)
from ..engines.tensorrt_plans import deserialised
from ..engines.tensorrt_probe import ready_device
from ..engines.tensorrt_tensors import engine_tensors
from ..errors import UserError
from ..files import PARTIAL, new_file
from ..footprint import footprint
from ..progress import Progress
from .network import fixed_network, import_onnx
from .tensorrt_builder import build_plan

LOCK_FILE = ".lock"
Told = Callable[[str], None]


@dataclass(frozen=True)
class BuildReport:
    """engines: names of the states asked for. built: how many of them were built now.
    engine_bytes: of all their plans. weight_bytes: of weights.bin, which none of them holds."""

    target: str
    engines: tuple[str, ...]
    built: int
    engine_bytes: int
    weight_bytes: int


def build_plans(bundle: Bundle, states: Sequence[ReplayState], told: Told) -> BuildReport:
    """Builds the engines of ``states`` that the bundle lacks. ``told`` is given a line where others
    are thrown away.

    Raises UserError where something needed is missing here, the bundle will not fit into this
    machine's memory, or TensorRT refuses; and OSError where the disk does.
    """
    with ready_device() as (device, library):
        import_onnx()
        _check_memory(bundle, states, device)
        with _alone(bundle):
            here = built_for(bundle, device, library)
            manifest = _kept(bundle, here, told)
            missing = [state for state in states if not _whole(bundle, manifest, state)]
            if missing:
                manifest = _build_each(bundle, manifest, missing)
    names = tuple(map(state_name, states))
    return BuildReport(
        target="tensorrt",
        engines=names,
        built=len(missing),
        engine_bytes=sum(manifest.engines[name].bytes for name in names),
        weight_bytes=bundle.manifest.files[WEIGHTS_FILE].bytes,
    )


def _build_each(
    bundle: Bundle, manifest: PlanManifest, states: Sequence[ReplayState]
) -> PlanManifest:
    runtime = started("Runtime")
    with Progress(len(states), "engines for TensorRT", "engines") as progress:
        for state in states:
            progress.note = state_name(state)
            manifest = _build(bundle, manifest, state, runtime)
            progress.advance()
    return manifest


def _build(
    bundle: Bundle, manifest: PlanManifest, state: ReplayState, runtime: Any
) -> PlanManifest:
    """Builds one plan, and lists it."""
    name = state_name(state)
    tensors = engine_tensors(bundle, state)
    network = fixed_network(bundle, state).SerializeToString()
    plan = build_plan(network, tensors, f"the network of {name}")
    engine = deserialised(runtime, plan, tensors, f"{name}, built just now")
    with new_file(plan_path(bundle, name)) as file:
        file.write(plan)
    entry = PlanEntry(
        bytes=len(plan),
        sha256=hashlib.sha256(plan).hexdigest(),
        scratch=engine.device_memory_size_v2,
    )
    manifest = replace(manifest, engines={**manifest.engines, name: entry})
    write_manifest(bundle, manifest)
    return manifest


def _kept(bundle: Bundle, here: BuiltFor, told: Told) -> PlanManifest:
    """The manifest of what fits ``here``; plans that it does not list are deleted."""
    try:
        manifest = read_manifest(bundle)
    except UserError as error:
        told(f"all engines are built anew: {error}")
        manifest = None
    if manifest is not None and (differences := manifest.built_for.differences(here)):
        told(f"all engines are built anew: {'; '.join(differences)}")
        manifest = None
    if manifest is None:
        manifest = PlanManifest(SCHEMA, here, {})
        write_manifest(bundle, manifest)
    listed = {plan_path(bundle, name) for name in manifest.engines}
    for path in _files(bundle):
        if path.suffix == PARTIAL or (path.suffix == ".plan" and path not in listed):
            path.unlink()
    return manifest


def _files(bundle: Bundle) -> list[Path]:
    """What is ours in the folder of engines. Raises UserError where that, or one of these, is a
    link, or no file: none is written through, and none waited for."""
    if not check_folder(bundle):
        return []
    ours = [
        path
        for path in plan_folder(bundle).iterdir()
        if path.suffix in (".plan", PARTIAL) or path.name in (MANIFEST_FILE, LOCK_FILE)
    ]
    return [path for path in ours if is_there(path)]


def _whole(bundle: Bundle, manifest: PlanManifest, state: ReplayState) -> bool:
    """Whether the plan of ``state`` is there and as it was built."""
    name = state_name(state)
    entry, path = manifest.engines.get(name), plan_path(bundle, name)
    if entry is None or not path.is_file() or path.stat().st_size != entry.bytes:
        return False
    return sha256_of(path) == entry.sha256


def _check_memory(bundle: Bundle, states: Sequence[ReplayState], device: PycudaDevice) -> None:
    """Refuses what would not run here. The process itself is there already."""
    need = footprint(bundle, states)
    wanted, free = need.total - need.process, device.free_memory()
    if wanted > free:
        largest = max(state.segment for state in states)
        raise UserError(
            f"decoding {bundle.path} with these {len(states)} replay states takes about "
            f"{wanted / 2**20:.0f} MiB ({need.weights / 2**20:.0f} of weights, "
            f"{(need.kv + need.kv_growth) / 2**20:.0f} of KV rows for a context of {largest}), and "
            f"{free / 2**20:.0f} MiB are free on {device.name}: close what else uses memory, leave "
            "long segments out with --states, or export with a shorter --context"
        )


@contextmanager
def _alone(bundle: Bundle) -> Iterator[None]:
    """Nobody else builds in the bundle's folder inside the block. Raises UserError where somebody
    does."""
    folder = plan_folder(bundle)
    _files(bundle)
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(opened, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another build is at work in {folder}: wait until it is done"
            ) from None
        yield
