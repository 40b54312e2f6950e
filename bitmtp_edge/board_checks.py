"""What ``doctor`` looks at for engine ``tensorrt`` and on a Jetson: files, groups and packages.

Nothing of TensorRT, pycuda or jetson-stats is imported, and no service is asked: a check that could
hang is none. nvpmodel is asked for the mode, and stopped where it hangs. Our own plugin library is
loaded, which starts nothing on a GPU.
"""

from __future__ import annotations

import grp
import importlib.metadata
import importlib.util
import os
import pwd
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bitmtp_edge.profiles import Profile, profile_of_module

from .errors import UserError
from .findings import Finding
from .host import Host
from .power.ina3221 import Ina3221, find_rails
from .power.modes import PowerModes
from .power.source import NoTotal, SourceError, Where

OLDEST_TENSORRT = (10, 3)
JETSON_LINUX = {36: "6", 39: "7.2"}  # with TensorRT 10.3 and newer, for Orin
GROUPS = ("video", "render")  # own the device files of the GPU
SWAP_FILE = (
    "sudo fallocate -l 8G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && "
    "sudo swapon /swapfile, and for the next boot a line of /etc/fstab (docs/jetson.md)"
)
PYCUDA_BUILD = "CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH pip install '.[jetson]'"


@dataclass(frozen=True)
class Account:
    """Who runs this: login name, names of its groups, and whether it is root."""

    name: str
    groups: frozenset[str]
    root: bool


def this_account() -> Account:
    """Of this process; a group added since the login is not among them."""
    names = set()
    for number in {os.getegid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue  # a group of nobody's list, as in containers
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return Account(name, frozenset(names), os.geteuid() == 0)


def tensorrt_checks(host: Host) -> Iterator[Finding]:
    """On any machine: what engine ``tensorrt`` needs."""
    yield _cuda(host)
    yield _tensorrt(host)
    yield _bindings(host)
    yield _plugins(host)
    yield _pycuda()


def board_checks(
    host: Host, root: Path = Path("/"), account: Account | None = None
) -> Iterator[Finding]:
    """Of the Jetson ``host``, whose files are below ``root``."""
    account = account or this_account()
    profile = profile_of_module(host.modules, host.memory)
    yield _board(host, profile)
    yield _jetson_linux(host)
    yield _groups(account)
    yield _power_mode(root, host, profile, account)
    yield _sensors(root)
    yield _jtop(root, account)
    if host.memory is not None and host.available is not None:
        yield _memory(host.memory, host.available, profile)
    yield _swap(host)


def _board(host: Host, profile: Profile | None) -> Finding:
    name = host.board or "a Jetson"
    if profile is None:
        modules = ", ".join(host.modules) or "none that is known"
        detail = f"{name} (module: {modules}): there is no profile of it, so `plan` needs --profile"
    else:
        detail = f"{name}, profile {profile.name}"
    return Finding("board", "untested", f"{detail}; nobody has run this SDK on a Jetson yet")


def _jetson_linux(host: Host) -> Finding:
    if host.l4t is None:
        return Finding("L4T", "missing", "/etc/nv_tegra_release does not tell: is it a container?")
    told = f"{host.l4t} (JetPack {host.jetpack or 'unknown'})"
    major = int(host.l4t.partition(".")[0])
    if major in JETSON_LINUX:
        return Finding("L4T", "ok", told)
    if major < min(JETSON_LINUX):
        fix = "its TensorRT is too old: flash JetPack 6.2 or 7.2"
        return Finding("L4T", "missing", f"{told}: {fix}")
    return Finding("L4T", "untested", f"{told}: made for JetPack 6 (L4T 36) and 7.2 (L4T 39)")


def _cuda(host: Host) -> Finding:
    if host.nvcc is None:
        version = "" if host.cuda is None else f"CUDA {host.cuda} without its compiler: "
        fix = _install(host, "nvidia-jetpack", "CUDA toolkit")
        return Finding("CUDA toolkit", "missing", f"{version}no nvcc to build with: {fix}")
    return Finding("CUDA toolkit", "ok", f"{host.cuda or 'of unknown version'}, {host.nvcc}")


def _tensorrt(host: Host) -> Finding:
    oldest = ".".join(map(str, OLDEST_TENSORRT))
    if host.tensorrt is None:
        fix = _install(host, "nvidia-jetpack", "TensorRT")
        return Finding("TensorRT", "missing", f"no libnvinfer, expected {oldest} or newer: {fix}")
    if _numbers(host.tensorrt)[:2] < OLDEST_TENSORRT:
        fix = "flash JetPack 6.2 or 7.2" if host.jetson else "update it"
        detail = f"{host.tensorrt}, expected {oldest} or newer: {fix}"
        return Finding("TensorRT", "missing", detail)
    if host.headers is None:
        fix = _install(host, "libnvinfer-dev", "TensorRT")
        detail = f"{host.tensorrt} without NvInferRuntime.h, to build plugins with: {fix}"
        return Finding("TensorRT", "missing", detail)
    return Finding("TensorRT", "ok", f"{host.tensorrt}, headers in {host.headers}")


def _install(host: Host, package: str, product: str) -> str:
    if host.jetson:
        return f"sudo apt install {package}"
    return f"it comes with JetPack; elsewhere install NVIDIA's {product}"


def _bindings(host: Host) -> Finding:
    """The Python package; looked up, and not imported: it loads half a gigabyte."""
    subject = "TensorRT in Python"
    if importlib.util.find_spec("tensorrt") is not None:
        detail = f"{_version('tensorrt') or 'found'}: no engine was ever built or run with it"
        return Finding(subject, "untested", detail)
    if not host.bindings:
        fix = _install(host, "python3-libnvinfer", "TensorRT")
        return Finding(subject, "missing", f"no package tensorrt: {fix}")
    ours = f"python3.{sys.version_info.minor}"
    folders = [path.parent.parent.name for path in host.bindings]
    if not {ours, "python3"} & set(folders):
        detail = f"JetPack has it for {folders[0]}, and this is {ours}"
        return Finding(
            subject, "missing", f"{detail}: {folders[0]} -m venv --system-site-packages .venv"
        )
    detail = "JetPack has it, and this environment does not see it"
    return Finding(
        subject, "missing", f"{detail}: {ours} -m venv --system-site-packages, and install again"
    )


def _plugins(host: Host) -> Finding:
    from .engines.tensorrt_library import PluginLibrary

    try:
        library = PluginLibrary()
    except UserError as error:
        return Finding("TensorRT plugins", "missing", str(error))
    made_for = library.architectures
    detail = f"{library.path.name} for SM {made_for}"
    if host.jetson and not re.search(r"\b87\b", made_for):
        fix = "pip install . -C cmake.define.CMAKE_CUDA_ARCHITECTURES=87-real"
        return Finding("TensorRT plugins", "missing", f"{detail}, and Orin is 87: {fix}")
    return Finding("TensorRT plugins", "untested", f"{detail}: TensorRT has never run them")


def _pycuda() -> Finding:
    if importlib.util.find_spec("pycuda") is None:
        return Finding("pycuda", "missing", f"it is compiled here: {PYCUDA_BUILD}")
    return Finding("pycuda", "ok", _version("pycuda") or "found")


def _groups(account: Account) -> Finding:
    lacking = [name for name in GROUPS if name not in account.groups]
    if account.root or not lacking:
        return Finding("groups", "ok", f"{account.name} may use the GPU")
    fix = f"sudo usermod -aG {','.join(lacking)} {account.name}, then log in again"
    return Finding("groups", "missing", f"{account.name} is not in {', '.join(lacking)}: {fix}")


def _power_mode(root: Path, host: Host, profile: Profile | None, account: Account) -> Finding:
    subject = "power mode"
    try:
        modes = PowerModes(root)
    except UserError as error:
        return Finding(subject, "missing", f"{error}: sudo apt install nvidia-l4t-nvpmodel")
    try:
        current = modes.current()
    except UserError as error:
        return Finding(subject, "missing", f"{error}: reboot, and try nvpmodel -q")
    table = modes.table.modes
    if not table:
        told = "unknown" if current is None else current.name
        fix = "sudo apt install --reinstall nvidia-l4t-nvpmodel"
        return Finding(subject, "missing", f"{told}; no /etc/nvpmodel.conf lists others: {fix}")
    listed = ", ".join(f"{mode.id} {mode.name}" for mode in table)
    change = "nvpmodel -m NUMBER" if account.root else "sudo nvpmodel -m NUMBER"
    if current is None:
        told = "neither nvpmodel -q nor /var/lib/nvpmodel/status tells the mode"
        return Finding(subject, "missing", f"{told}, of {listed}: {change}")
    detail = f"{current.name}, of {listed}; to change it: {change}"
    if profile and not host.super_mode and any("super" in m.flashed for m in profile.modes):
        detail += "; super modes take a board that was flashed as super"
    unknown = [mode.name for mode in table if not _known(profile, mode.name)]
    if profile and unknown:
        detail += f"; not in profile {profile.name}: {', '.join(unknown)}"
        return Finding(subject, "untested", detail)
    return Finding(subject, "ok", detail)


def _known(profile: Profile | None, name: str) -> bool:
    return profile is None or any(mode.name == name for mode in profile.modes)


def _sensors(root: Path) -> Finding:
    rails = find_rails(root)
    if not rails:
        return Finding("power sensors", "missing", f"no INA3221 under {root / 'sys'}")
    try:
        watts = ", ".join(f"{rail.name} {rail.milliwatts() / 1000:.1f} W" for rail in rails)
        Ina3221(Where(root))
    except NoTotal as error:
        return Finding("power sensors", "missing", f"{watts}; no total: {error}")
    except (SourceError, OSError) as error:
        return Finding("power sensors", "missing", f"they cannot be read: {error}")
    return Finding("power sensors", "ok", watts)


def _jtop(root: Path, account: Account) -> Finding:
    """jetson-stats, which is never required: the sensors can be read without it."""
    if importlib.util.find_spec("jtop") is None:
        detail = "jetson-stats is not installed, nor needed: pip install '.[jetson]'"
        return Finding("jtop", "missing", detail)
    version = _version("jetson-stats") or "jetson-stats"
    if not (root / "run/jtop.sock").exists():
        fix = "sudo systemctl restart jtop.service"
        return Finding("jtop", "missing", f"{version}: its service does not run: {fix}")
    if not account.root and "jtop" not in account.groups:
        fix = f"sudo usermod -aG jtop {account.name}, then log in again"
        return Finding("jtop", "missing", f"{version}: {account.name} is not in jtop: {fix}")
    return Finding("jtop", "ok", f"{version}, its service runs")


def _memory(memory: int, available: int, profile: Profile | None) -> Finding:
    detail = f"{_gib(available)} of {_gib(memory)} GiB available"
    expected = profile.available_mb << 20 if profile else 0
    if available < 0.8 * expected:
        detail += (
            f", where a board without a desktop has {_gib(expected)}: "
            "sudo systemctl set-default multi-user.target, and reboot"
        )
    return Finding("memory", "ok", detail)


def _swap(host: Host) -> Finding:
    if host.swap:
        return Finding("swap", "ok", f"{_gib(host.swap)} GiB")
    return Finding("swap", "missing", f"none: builds may run out of memory: {SWAP_FILE}")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
