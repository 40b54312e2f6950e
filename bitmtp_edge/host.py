"""What this machine is: the board, and the versions of L4T, JetPack, CUDA and TensorRT on it.

Read from files alone: nothing is imported, loaded or started. Every path is below ``root``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .power.sysfs import integer

# By release of Jetson Linux, where the package nvidia-jetpack is not installed to tell; the longest
# beginning that fits counts.
JETPACKS = {
    "36.2": "6.0",
    "36.3": "6.0",
    "36.4.0": "6.1",
    "36.4": "6.2",
    "36.4.4": "6.2.1",
    "36.5": "6.2.2",
    "38.2": "7.0",
    "39.2": "7.2",
    "39.2.1": "7.2.1",
}

_LIBRARIES = ("usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/local/lib")
_HEADERS = ("usr/include/aarch64-linux-gnu", "usr/include/x86_64-linux-gnu", "usr/include")


@dataclass(frozen=True)
class Host:
    """None: it is not there, or does not tell.

    board: as the device tree names it. modules: of its compatible strings those that name a module,
    such as "p3767-0000". super_mode: whether the board was flashed with its "super" configuration.
    l4t: "36.4.3". jetpack: "6.2". cuda: of the toolkit. nvcc: the compiler. tensorrt: of the
    library. headers: the folder of NvInferRuntime.h, as plugins/gpu.cmake looks for it. bindings:
    folders of the system's own Python packages that hold ``tensorrt``. memory, available, swap:
    bytes, in all and now.
    """

    board: str | None
    modules: tuple[str, ...]
    super_mode: bool
    l4t: str | None
    jetpack: str | None
    cuda: str | None
    nvcc: Path | None
    tensorrt: str | None
    headers: Path | None
    bindings: tuple[Path, ...]
    memory: int | None
    available: int | None
    swap: int | None

    @property
    def jetson(self) -> bool:
        return self.l4t is not None or bool(self.modules)


def read_host(root: Path = Path("/")) -> Host:
    """The machine whose files are below ``root``."""
    packages = installed_packages(root)
    compatible = _device_tree(root, "compatible").split("\0")
    modules = dict.fromkeys(re.findall(r"p3[67]\d\d-\d{4}", " ".join(compatible)))
    l4t = _l4t(root, packages)
    memory = memory_facts(root)
    return Host(
        board=_device_tree(root, "model").strip("\0 \n") or None,
        # A compatible string "nvidia,p3768-0000+p3767-0005-super" names the carrier board first.
        modules=tuple(name for name in modules if name[:5] in ("p3701", "p3767")),
        super_mode=any(name.endswith("-super") for name in compatible),
        l4t=l4t,
        jetpack=_upstream(packages.get("nvidia-jetpack")) or _jetpack(l4t or ""),
        cuda=_cuda(root),
        nvcc=_first(root, ("usr/local/cuda/bin/nvcc", "usr/bin/nvcc")),
        tensorrt=_tensorrt(root, packages),
        headers=_first(
            root, tuple(f"{folder}/NvInferRuntime.h" for folder in _HEADERS), parent=True
        ),
        bindings=tuple(sorted(root.glob("usr/lib/python3*/dist-packages/tensorrt"))),
        memory=memory.get("MemTotal"),
        available=memory.get("MemAvailable"),
        swap=memory.get("SwapTotal"),
    )


def memory_facts(root: Path = Path("/")) -> dict[str, int]:
    """/proc/meminfo in bytes; empty where there is none."""
    lines = re.findall(r"^(\w+): +(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    numbers = ((name, integer(size)) for name, size in lines)
    return {name: size << 10 for name, size in numbers if size is not None}


def installed_packages(root: Path = Path("/")) -> dict[str, str]:
    """Versions of the Debian packages that are installed, by name; empty on other systems."""
    found: dict[str, str] = {}
    for stanza in _text(root / "var/lib/dpkg/status").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= set(
            fields
        ):
            found[fields["Package"]] = fields["Version"].strip()
    return found


def _l4t(root: Path, packages: Mapping[str, str]) -> str | None:
    """Of a line such as "# R36 (release), REVISION: 4.3, GCID: ..."."""
    release = re.search(
        r"R(\d{1,4}) \(release\), REVISION: (\d{1,4}(?:\.\d{1,4})*)",
        _text(root / "etc/nv_tegra_release"),
    )
    found = f"{release[1]}.{release[2]}" if release else _upstream(packages.get("nvidia-l4t-core"))
    if found is None:
        return None
    return found + ".0" * (2 - found.count("."))


def _jetpack(l4t: str) -> str | None:
    fitting = [release for release in JETPACKS if f"{l4t}.".startswith(f"{release}.")]
    return JETPACKS[max(fitting, key=len)] if fitting else None


def _upstream(version: str | None) -> str | None:
    """ "36.4.3" of "36.4.3-20250107174145", "6.2" of "6.2+b77"."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version or "")
    return found[0] if found else None


def _cuda(root: Path) -> str | None:
    try:
        facts = json.loads(_text(root / "usr/local/cuda/version.json"))
        version = facts["cuda"]["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, str) else None


def _tensorrt(root: Path, packages: Mapping[str, str]) -> str | None:
    """Of the library: its package, or else the name of its file, libnvinfer.so.10.3.0."""
    names = sorted(name for name in packages if re.fullmatch(r"libnvinfer\d+", name))
    if names and (version := _upstream(packages[names[-1]])):
        return version
    files = [path for folder in _LIBRARIES for path in (root / folder).glob("libnvinfer.so.*.*.*")]
    return max((path.name.partition(".so.")[2] for path in files), default=None)


def _device_tree(root: Path, name: str) -> str:
    return _text(root / "proc/device-tree" / name)


def _first(root: Path, names: tuple[str, ...], parent: bool = False) -> Path | None:
    for name in names:
        path = root / name
        if path.is_file():
            return path.parent if parent else path
    return None


def _text(path: Path) -> str:
    """Of a file that may be missing, or not for us to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
