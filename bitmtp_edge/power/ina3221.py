"""The board's INA3221 sensors, as the kernel shows them: hwmon, or iio on JetPack 4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .source import BOARD_INPUTS, UNCONNECTED, NoTotal, Reading, Source, SourceError, Where
from .sysfs import number_or_none, read_number, text_or_none

CHIPS = ("ina3221", "ina3221x")  # the driver's names, of hwmon and of iio
POLL_S = 0.05
_SLOWEST_S = 10.0

# The same hwmon folder shows up under all of these on a board. Its number differs from board to
# board and says nothing.
_HWMON = (
    "sys/class/hwmon/hwmon*",
    "sys/bus/i2c/devices/*/hwmon/hwmon*",
    "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*",
    "sys/devices/platform/*.i2c/i2c-*/*/hwmon/hwmon*",
    "sys/devices/platform/bus@0/*.i2c/i2c-*/*/hwmon/hwmon*",
)
_IIO = (
    "sys/bus/i2c/drivers/ina3221x/*/iio:device*",
    "sys/bus/iio/devices/iio:device*",
)
_COMPATIBLE = "proc/device-tree/compatible"
_HAS_VDD_IN = "p3767"  # the module of Orin NX and Nano
_CHANNELS = (1, 2, 3)  # hwmon's in4 to in7 and curr4 are shunt voltages and sums


@dataclass(frozen=True)
class Rail:
    """A channel with a name. The files give mV and mA, or mW at once where there is ``power``."""

    name: str
    chip: Path
    volts: str
    amperes: str
    power: str | None = None
    alarms: tuple[str, ...] = ()

    def milliwatts(self) -> int:
        """Now, to the nearest mW: the chip's own steps are larger."""
        if self.power is not None:
            return read_number(self.power)
        return round(read_number(self.volts) * read_number(self.amperes) / 1000)


class Ina3221(Source):
    """All rails of all INA3221 chips under ``where.root``, in the order of their addresses."""

    name = "ina3221"

    def __init__(self, where: Where) -> None:
        self._rails = find_rails(where.root)
        if not self._rails:
            raise SourceError(f"no INA3221 with a named rail under {where.root / 'sys'}")
        _check_input(where.root, self._rails)
        slowest = max(number_or_none(rail.chip / "update_interval") or 0 for rail in self._rails)
        self.poll_s = self.update_s = min(max(POLL_S, slowest / 1000), _SLOWEST_S)

    def read(self) -> Reading:
        return self.board_reading({rail.name: rail.milliwatts() for rail in self._rails})


def find_rails(root: Path) -> list[Rail]:
    """The named rails under ``root``; those of hwmon, or where there are none, those of iio."""
    rails = [rail for chip in _chips(root, _HWMON) for rail in _hwmon_rails(chip)]
    rails = rails or [rail for chip in _chips(root, _IIO) for rail in _iio_rails(chip)]
    return _named_apart(rails)


def _check_input(root: Path, rails: list[Rail]) -> None:
    """NoTotal where the board has an input rail and it is not among ``rails``."""
    names = [rail.name for rail in rails]
    if any(name in BOARD_INPUTS for name in names):
        return
    for chip in _chips(root, _HWMON):
        for channel in _CHANNELS:
            label = text_or_none(chip / f"in{channel}_label")
            why = _no_value(chip, channel) or "two channels are labelled so"
            if label in BOARD_INPUTS:
                raise NoTotal(label, why)
    if _HAS_VDD_IN in (text_or_none(root / _COMPATIBLE) or ""):
        raise NoTotal("VDD_IN", "no channel is labelled so")


def _chips(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Folders of INA3221 chips by address, each once: a folder's own name is unique in a kernel."""
    found: list[Path] = []
    for pattern in patterns:
        known = {folder.name for folder in found}
        here = (folder for folder in root.glob(pattern) if folder.name not in known)
        found += sorted(filter(_is_ina3221, here), key=lambda folder: (_address(folder), folder))
    return found


def _is_ina3221(folder: Path) -> bool:
    if any(part in CHIPS for part in folder.parts[-4:]):  # below the driver's folder
        return True
    names = (folder / "name", folder / "device" / "name", folder.parent.parent / "name")
    return any(text_or_none(name) in CHIPS for name in names)


def _address(folder: Path) -> str:
    """The chip's bus and address, such as ``1-0040``, as far as the folder tells."""
    device = folder / "device"
    return device.resolve().name if device.exists() else folder.parent.parent.name


def _hwmon_rails(chip: Path) -> Iterator[Rail]:
    for channel in _CHANNELS:
        label = text_or_none(chip / f"in{channel}_label")
        volts, amperes = chip / f"in{channel}_input", chip / f"curr{channel}_input"
        if not _is_rail(label) or _no_value(chip, channel) is not None:
            continue
        alarms = (chip / f"curr{channel}_{limit}_alarm" for limit in ("max", "crit"))
        yield Rail(
            label or "",
            chip,
            str(volts),
            str(amperes),
            alarms=tuple(str(alarm) for alarm in alarms if alarm.exists()),
        )


def _no_value(chip: Path, channel: int) -> str | None:
    """Why a channel tells no power; None where it does."""
    enable = chip / f"in{channel}_enable"
    if number_or_none(enable) == 0:
        return f"{enable} is 0"
    files = (chip / f"in{channel}_input", chip / f"curr{channel}_input")
    return next((f"{file} is missing" for file in files if not file.exists()), None)


def _iio_rails(chip: Path) -> Iterator[Rail]:
    for channel in range(len(_CHANNELS)):
        label = text_or_none(chip / f"rail_name_{channel}")
        if not _is_rail(label):
            continue
        power = chip / f"in_power{channel}_input"
        yield Rail(
            label or "",
            chip,
            str(chip / f"in_voltage{channel}_input"),
            str(chip / f"in_current{channel}_input"),
            str(power) if power.exists() else None,
        )


def _is_rail(label: str | None) -> bool:
    """Channels without a label are disabled; NC is not connected."""
    return label is not None and label.upper() != UNCONNECTED


def _named_apart(rails: list[Rail]) -> list[Rail]:
    """A name that two channels have gets the chip's address, and where one chip has them both a
    number too, so that neither hides the other."""
    names = [rail.name for rail in rails]
    apart: list[Rail] = []
    for rail in rails:
        name = rail.name
        if names.count(name) > 1:
            name = f"{rail.name} ({_address(rail.chip)})"
            alike = sum(each.name.startswith(name[:-1]) for each in apart)
            name = f"{name[:-1]}, {alike + 1})" if alike else name
        apart.append(replace(rail, name=name))
    return apart
