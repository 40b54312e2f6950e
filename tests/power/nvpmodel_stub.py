"""A board's nvpmodel: its configuration, and a command that keeps a mode in a file.

The command writes down how it was called. A file ``how`` in its folder tells it to misbehave.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitmtp_edge.power.modes import Patience, PowerModes

from . import trees

IMPATIENT = Patience(query_s=5, set_s=1, hold_s=0.2, poll_s=0.02)

CONF = """\
# Orin NX 16 GB, JetPack 6.2
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask
< PARAM TYPE=CLOCK NAME=GPU >
MAX_FREQ /sys/devices/17000000.ga10b/devfreq/17000000.ga10b/max_freq
< POWER_MODEL ID=0 NAME=MAXN_SUPER >
CPU_ONLINE CORE_0 1
TPC_POWER_GATING TPC_PG_MASK 0
GPU MAX_FREQ -1
< POWER_MODEL ID=1 NAME=10W >
CPU_ONLINE CORE_0 1
TPC_POWER_GATING TPC_PG_MASK 8
GPU MAX_FREQ 612000000
< POWER_MODEL ID=2 NAME=15W >
TPC_POWER_GATING TPC_PG_MASK 0
< POWER_MODEL ID=3 NAME=25W >
TPC_POWER_GATING TPC_PG_MASK 0
# mandatory section to configure the default mode
< PM_CONFIG DEFAULT=2 >
"""

_COMMAND = """
import os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
with open(folder / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
how = (folder / "how").read_text() if (folder / "how").exists() else ""
names = {{0: "MAXN_SUPER", 1: "10W", 2: "15W", 3: "25W"}}
state = folder / "state"
setting = sys.argv[1] == "-m"
if "hang" in how and (setting or "query" in how):
    time.sleep(600)
while "flood" in how and setting:
    print("NVPM VERB: value = 1" * 100)
if "die" in how and setting:
    os.kill(os.getpid(), signal.SIGKILL)
if not setting:
    if "silent" not in how:
        number = int(state.read_text())
        print("NVPM WARN: fan mode is not set")
        print("NV Power Mode: " + names[number])
        print(number)
    raise SystemExit(0)
if "permission" in how:
    print("NVPM ERROR: failed to open file /var/lib/nvpmodel/status: Permission denied")
    raise SystemExit(1)
if "half" in how:
    state.write_text("0")
if "fail" in how:
    print("NVPM ERROR: Error writing 2 to /sys/devices/gpu.0/fbp_pg_mask: 19")
    print("NVPM ERROR: failed to set power mode!")
    raise SystemExit(0 if "quietly" in how else 255)
if "lie" in how:
    raise SystemExit(0)
if "reboot" in how or sys.argv[2] == "1":
    print("NVPM WARN: Golden image context is already created")
    print("NVPM WARN: Reboot required for changing to this power mode: " + sys.argv[2])
    print("NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm:")
    if sys.stdin.readline().strip().lower() == "yes":
        print("NVPM WARN: rebooting")
        raise SystemExit(0)
    print("NVPM ERROR: bad input!")
    print("NVPM ERROR: optMask is 1, no request for power mode")
    raise SystemExit(255)
if "interrupt" in how:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(0.1)
state.write_text(sys.argv[2])
"""


@dataclass(frozen=True)
class Board:
    """root: its files. bin: the folder of its nvpmodel."""

    root: Path
    bin: Path

    @property
    def command(self) -> str:
        return str(self.bin / "nvpmodel")

    @property
    def mode(self) -> int:
        return int((self.bin / "state").read_text())

    @property
    def calls(self) -> list[str]:
        """How nvpmodel was called to set something."""
        told = (self.bin / "calls").read_text() if (self.bin / "calls").exists() else ""
        return [line for line in told.splitlines() if line != "-q"]

    def set(self, mode: int) -> None:
        (self.bin / "state").write_text(str(mode))

    def misbehave(self, how: str) -> None:
        (self.bin / "how").write_text(how)


def board(folder: Path) -> Board:
    """One whose mode is 2, 15W."""
    here = Board(folder / "root", folder / "bin")
    trees.write(here.root / "etc/nvpmodel.conf", CONF)
    trees.write(here.bin / "state", 2)
    trees.script(here.bin / "nvpmodel", _COMMAND.format(folder=str(here.bin)))
    return here


def modes_of(here: Board, patience: Patience = IMPATIENT) -> PowerModes:
    return PowerModes(here.root, here.command, patience)
