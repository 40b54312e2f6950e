"""NVIDIA's nvpmodel: its configuration, what it prints, and a run of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .sysfs import integer
from .tool import run_tool

_SBIN = ("/usr/sbin", "/sbin")  # often missing in a user's PATH
_SYSTEM = (*_SBIN, "/usr/bin", "/bin")
_HEADER = re.compile(r"<\s*(\w+)\b([^>]*)>")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*([^\s>]+)")
_NAME = re.compile(r"NV\s+Power\s+Mode\s*(?:\[(\d+)\])?\s*:\s*(\S+)")
_ACTIVE = re.compile(r"\bACTIVE\s*=\s*(\S+?)\((\d+)\)")
_STATUS = re.compile(r"\bpmode:(\d+)")
_POWER_GATING = "_PG_MASK"


@dataclass(frozen=True)
class Mode:
    """A power mode. settings: "SECTION PARAMETER" to value, as the configuration has them."""

    id: int
    name: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def gates_as(self, other: Mode) -> bool:
        """Whether the GPU has the same units in both; changing them takes a reboot."""
        masks = {key for key in {*self.settings, *other.settings} if key.endswith(_POWER_GATING)}
        return all(
            self.settings[key] == other.settings[key]
            for key in masks
            if key in self.settings and key in other.settings
        )


@dataclass(frozen=True)
class Table:
    """The modes of nvpmodel.conf, by id, and the id of the default."""

    modes: tuple[Mode, ...]
    default: int | None

    def named(self, name: str) -> Mode | None:
        return next((mode for mode in self.modes if mode.name == name), None)

    def numbered(self, number: int | None) -> Mode | None:
        return next((mode for mode in self.modes if mode.id == number), None)


@dataclass(frozen=True)
class Current:
    """The mode that nvpmodel told. id: None where it told the name alone."""

    name: str
    id: int | None

    def is_(self, mode: Mode) -> bool:
        return self.name == mode.name and self.id in (None, mode.id)


def parse_conf(text: str) -> Table:
    """The table of an nvpmodel.conf; what is not about modes is passed over."""
    modes: dict[int, Mode] = {}
    default = None
    settings: dict[str, str] | None = None
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        header = _HEADER.fullmatch(line)
        if header is not None:
            attributes = dict(_ATTRIBUTE.findall(header[2]))
            settings = None
            if header[1] == "PM_CONFIG":
                default = integer(attributes.get("DEFAULT", ""))
            number = integer(attributes.get("ID", ""))
            if header[1] == "POWER_MODEL" and number is not None and "NAME" in attributes:
                settings = {}
                modes[number] = Mode(number, attributes["NAME"], settings)
        elif settings is not None and len(words := line.split()) == 3:
            settings[f"{words[0]} {words[1]}"] = words[2]
    return Table(tuple(modes[number] for number in sorted(modes)), default)


def parse_query(text: str) -> Current | None:
    """The mode in the output of ``nvpmodel -q``; None where it tells none."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if named := _NAME.search(line):
            rest = (each.strip() for each in lines[index + 1 :])
            number = named[1] or next((each for each in rest if each.isdecimal()), None)
            return Current(named[2], None if number is None else integer(number))
    if active := _ACTIVE.search(text):
        return Current(active[1], integer(active[2]))
    return None


def parse_status(text: str) -> int | None:
    """The mode's id in /var/lib/nvpmodel/status."""
    found = _STATUS.search(text)
    return None if found is None else integer(found[1])


def find_command(root: Path = Path("/")) -> str | None:
    """The path of the nvpmodel that knows the modes of ``root``; None where there is none.

    This machine's knows nothing of another root, and would set the modes of this machine. Only one
    that somebody put into PATH outside the system's own folders stands for it.
    """
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *_SBIN]
    if root.resolve() != Path("/"):
        system = {os.path.realpath(folder) for folder in _SYSTEM}
        folders = [each for each in folders if os.path.realpath(each) not in system]
    return shutil.which("nvpmodel", path=os.pathsep.join(folders))


@dataclass(frozen=True)
class Done:
    """What a run of nvpmodel gave; output: both its streams."""

    code: int
    output: str

    @property
    def asks_for_reboot(self) -> bool:
        return "reboot" in self.output.lower()

    @property
    def tells_error(self) -> bool:
        return "nvpm error" in self.output.lower()

    @property
    def lacks_permission(self) -> bool:
        told = self.output.lower()
        return any(sign in told for sign in ("permission denied", "must be root", "as root"))

    @property
    def complaint(self) -> str:
        """Its first line about an error, or its last line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = (line for line in lines if "error" in line.lower())
        return next(errors, lines[-1] if lines else "it said nothing")


def run(command: str, *arguments: str, within_s: float, answer: str = "no\n") -> Done:
    """Runs nvpmodel; ``answer`` is what it gets where it asks whether to reboot.

    UserError where it cannot be started, is not done within ``within_s`` or prints without end; it
    is then ended.
    """
    shown = " ".join(("nvpmodel", *arguments))
    return Done(*run_tool([command, *arguments], shown, within_s, answer))
