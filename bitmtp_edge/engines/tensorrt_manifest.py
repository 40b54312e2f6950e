"""Which engines a bundle has for TensorRT: engines/tensorrt/manifest.json and a plan for each.

A plan fits one TensorRT, one GPU and one plugin library, and deserialising another is undefined.
So none is looked at unless everything that the manifest says of it holds.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from .. import __version__
from ..bundle import BUNDLE_FILE, Bundle, sha256_of
from ..errors import UserError, one_line
from ..files import new_file
from ..host import read_host
from ..records import read_record
from .base import NotBuilt, ReplayState, Role
from .gpu_device import GpuDevice
from .tensorrt_api import import_tensorrt
from .tensorrt_library import PluginLibrary

SCHEMA = 1
MANIFEST_FILE = "manifest.json"
MOST_BYTES = 1 << 36  # of a plan's file or scratch: the memory of the largest board
_MOST_TOLD = 80  # characters of a manifest's field

_TOLD = {
    "sdk": "bitmtp-edge",
    "tensorrt": "TensorRT",
    "sm": "the GPU's compute capability (SM)",
    "l4t": "L4T",
    "plugin": "the plugin library's SHA-256",
    "bundle": "the SHA-256 of bundle.json",
}


@dataclass(frozen=True)
class BuiltFor:
    """All that plans depend on.

    sdk, tensorrt: versions. sm: compute capability, "8.7". l4t: Jetson Linux, None elsewhere.
    plugin: SHA-256 of the plugin library. bundle: SHA-256 of bundle.json, which has that of every
    other file.
    """

    sdk: str
    tensorrt: str
    sm: str
    l4t: str | None
    plugin: str
    bundle: str

    def differences(self, here: BuiltFor) -> list[str]:
        """What of it is otherwise ``here``, a phrase each: the field, found and expected."""
        ours = asdict(here)
        return [
            f"{_TOLD[name]} was {one_line(found or 'none', _MOST_TOLD)} when they were built, "
            f"and is {ours[name] or 'none'} here"
            for name, found in asdict(self).items()
            if found != ours[name]
        ]


@dataclass(frozen=True)
class PlanEntry:
    """A plan's file, and ``scratch``, the bytes of device memory that its step needs."""

    bytes: int
    sha256: str
    scratch: int


@dataclass(frozen=True)
class PlanManifest:
    """manifest.json. engines: by :func:`state_name`."""

    schema: int
    built_for: BuiltFor
    engines: dict[str, PlanEntry]


def built_for(bundle: Bundle, device: GpuDevice, library: PluginLibrary) -> BuiltFor:
    """What plans of ``bundle`` depend on, here and now."""
    major, minor = device.capability
    return BuiltFor(
        sdk=__version__,
        tensorrt=import_tensorrt().__version__,
        sm=f"{major}.{minor}",
        l4t=read_host().l4t,
        plugin=library.sha256,
        bundle=sha256_of(bundle.path / BUNDLE_FILE),
    )


def state_name(state: ReplayState) -> str:
    """Of a state's engine: "verify-m9-h1-c1024", and "-logits" behind it for sampling."""
    name = f"{state.role}-m{state.width}-h{state.outputs}-c{state.segment}"
    return f"{name}-logits" if state.logits else name


def named_state(name: str) -> ReplayState | None:
    """The state of that name, None for what is none."""
    found = re.fullmatch(
        r"(draft|verify)-m(\d{1,9})-h(\d{1,9})-c(\d{1,9})(-logits)?", name, re.ASCII
    )
    if found is None:
        return None
    role, width, outputs, segment, logits = found.groups()
    return ReplayState(int(width), int(outputs), int(segment), cast(Role, role), logits is not None)


def build_command(bundle: Bundle, states: Iterable[ReplayState] = ()) -> str:
    """The command that builds engines for ``bundle``: all, or those of ``states``."""
    chosen = "".join(f" --states {state_name(state)}" for state in states)
    return f"bitmtp-edge build {shlex.quote(str(bundle.path))} --target tensorrt{chosen}"


def rebuild_command(bundle: Bundle, state: ReplayState) -> str:
    """The command that builds the engine of ``state`` anew, though its file is as it was built."""
    plan = shlex.quote(str(plan_path(bundle, state_name(state))))
    return f"rm {plan} && {build_command(bundle, [state])}"


def plan_folder(bundle: Bundle) -> Path:
    return bundle.path / "engines" / "tensorrt"


def plan_path(bundle: Bundle, name: str) -> Path:
    return plan_folder(bundle) / f"{name}.plan"


def is_there(path: Path, folder: bool = False) -> bool:
    """Whether the bundle has a file, or a ``folder``, of that name.

    Raises UserError for anything else: a link may lead out of the bundle, and what is no file may
    never end.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode):
        return True
    found = "a link" if stat.S_ISLNK(mode) else "no folder" if folder else "no file"
    raise UserError(
        f"{path} is {found}, expected {'a folder' if folder else 'a file'} of the bundle's own: "
        "remove it"
    )


def check_folder(bundle: Bundle) -> bool:
    """Whether the bundle has a folder of engines. Raises UserError where that, or the one it is in,
    is a link or no folder."""
    folder = plan_folder(bundle)
    return is_there(folder.parent, folder=True) and is_there(folder, folder=True)


def read_manifest(bundle: Bundle) -> PlanManifest | None:
    """None where there is none. Raises UserError for one that is damaged or of another SDK: build
    again."""
    path = plan_folder(bundle) / MANIFEST_FILE
    if not (check_folder(bundle) and is_there(path)):
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged") from None
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise UserError(f"{path}: schema is {schema!r}, expected {SCHEMA}")
    manifest = read_record(PlanManifest, value, str(path))
    for name, entry in manifest.engines.items():
        if named_state(name) is None:
            raise UserError(f"{path}: {name!r} is no replay state")
        for field in ("bytes", "scratch"):
            number = getattr(entry, field)
            if not 0 <= number <= MOST_BYTES:
                raise UserError(
                    f"{path}: {field} of {name} is {number}, expected 0 to {MOST_BYTES}"
                )
    return manifest


def write_manifest(bundle: Bundle, manifest: PlanManifest) -> None:
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"
    with new_file(plan_folder(bundle) / MANIFEST_FILE) as file:
        file.write(text.encode())


def checked_manifest(bundle: Bundle, here: BuiltFor) -> PlanManifest:
    """The manifest of engines that fit ``here``. Raises NotBuilt where there is none, or what they
    were built for is something else, and UserError where it is damaged."""
    again = f"build again with  {build_command(bundle)}"
    try:
        manifest = read_manifest(bundle)
    except UserError as error:
        raise UserError(f"{error}: {again}") from None
    if manifest is None or not manifest.engines:
        raise NotBuilt(
            f"{bundle.path} has no engines for TensorRT: build them on this machine with  "
            f"{build_command(bundle)}"
        )
    differences = manifest.built_for.differences(here)
    if differences:
        raise NotBuilt(
            f"the engines in {plan_folder(bundle)} do not fit: {'; '.join(differences)}: {again}"
        )
    return manifest


def read_plan(bundle: Bundle, manifest: PlanManifest, state: ReplayState) -> bytes:
    """The plan of ``state``, whole and unchanged. Raises UserError where it is not, or there is
    none."""
    name = state_name(state)
    entry = manifest.engines.get(name)
    again = f"build it with  {build_command(bundle, [state])}"
    if entry is None:
        raise NotBuilt(f"{bundle.path} has no engine {name} for TensorRT: {again}")
    path = plan_path(bundle, name)
    try:
        present = is_there(path)
    except UserError as error:
        raise UserError(f"{error}: {again}") from None
    if not present:
        raise UserError(f"{path} is missing: {again}")
    plan = path.read_bytes()
    if len(plan) != entry.bytes:
        raise UserError(f"{path}: {len(plan)} bytes, the manifest says {entry.bytes}: {again}")
    found = hashlib.sha256(plan).hexdigest()
    if found != entry.sha256:
        raise UserError(
            f"{path}: its SHA-256 is {found}, the manifest says {entry.sha256}: {again}"
        )
    return plan
