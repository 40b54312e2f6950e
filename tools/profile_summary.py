"""Usage: profile_summary.py PROGRAM ARGUMENT...

Runs PROGRAM under Nsight Compute and prints, of its kernels called ``..._kernel``, the share of
each in their time, and what the two hottest ones wait for. Of a program that repeats itself only
the last whole repetition counts: from a launch like the first to the next one like it. Exit code 2
where Nsight Compute measures nothing.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LAUNCHES = 600  # enough for two steps of a model of 36 layers
SHOWN, DETAILED = 6, 2
DURATION = "gpu__time_duration.sum"
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "WarpStateStats", "LaunchStats")
STALLS = "smsp__average_warps_issue_stalled_.*_per_issue_active"
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")


class Kernel(NamedTuple):
    """One kernel at one size. name: with its template arguments."""

    name: str
    grid: str
    block: str

    def __str__(self) -> str:
        # Without namespaces, casts of template arguments, and parameters.
        inner = r"(\(anonymous namespace\)|<?unnamed>|\w+)::|\(\w+\)(?=[\w-])"
        short = re.sub(r"^void |\([^()]*\)$", "", re.sub(inner, "", self.name))
        return f"{short} {self.grid}x{self.block}"

    @property
    def function(self) -> str:
        found = re.search(r"\w+_kernel", self.name)
        return found.group() if found else self.name


class Launch(NamedTuple):
    """metrics: value by (section, metric), in base units."""

    kernel: Kernel
    metrics: dict[tuple[str, str], float]


def profile(command: Sequence[str], options: Sequence[str]) -> list[Launch]:
    """The launches that ``options`` of ncu choose, in order."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        ncu = ("ncu", "--log-file", str(log), "--csv", "--page", "details", "--print-units", "base")
        done = subprocess.run(
            [*ncu, "--clock-control", "none", *options, *command], capture_output=True, text=True
        )
        lines = log.read_text().splitlines() if log.exists() else []
    found: dict[str, Launch] = {}
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        kernel = Kernel(row["Kernel Name"], row["Grid Size"], row["Block Size"])
        launch = found.setdefault(row["ID"], Launch(kernel, {}))
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue  # a rule's advice, or text
        launch.metrics[row["Section Name"], row["Metric Name"]] = value
    if not found:
        said = [line for line in (*lines, *done.stderr.splitlines()) if "==ERROR==" in line]
        why = said[0].removeprefix("==ERROR== ") if said else "it saw none of the kernels"
        print(f"Nsight Compute measured nothing: {why}", file=sys.stderr)
        sys.exit(2)
    return list(found.values())


def once(launches: Sequence[Launch]) -> tuple[int, int]:
    """First and last + 1 of the launches of the last whole repetition."""
    starts = [i for i, each in enumerate(launches) if each.kernel == launches[0].kernel]
    return (starts[-2], starts[-1]) if len(starts) > 1 else (0, len(launches))


def describe(metrics: Mapping[tuple[str, str], float]) -> list[str]:
    """Three lines about one launch."""
    by_name = {name: value for (_, name), value in metrics.items()}

    def shown(name: str, unit: str = "", scale: float = 1.0, digits: int = 0) -> str:
        return f"{by_name[name] * scale:.{digits}f}{unit}" if name in by_name else "?"

    stalls = {m[1]: value for name, value in by_name.items() if (m := STALL.match(name))}
    total = sum(stalls.values()) or 1.0
    worst = sorted(stalls, key=lambda name: -stalls[name])[:4]
    spent = (f"{name.replace('_', ' ')} {100 * stalls[name] / total:.0f} %" for name in worst)
    return [
        f"{shown('Duration', ' us', 1e-3, 2)}; DRAM {shown('DRAM Throughput', ' %')}, "
        f"SM {shown('Compute (SM) Throughput', ' %')}, L2 hits {shown('L2 Hit Rate', ' %')}",
        f"{shown('Registers Per Thread')} registers, {shown('Waves Per SM', digits=2)} waves, "
        f"occupancy {shown('Achieved Occupancy', ' %')} of {shown('Theoretical Occupancy', ' %')}",
        f"{shown('Warp Cycles Per Issued Instruction', digits=1)} cycles of a warp for each "
        f"instruction: {', '.join(spent)}",
    ]


def main(command: Sequence[str]) -> None:
    launches = profile(
        command,
        # One pass measures it, so that caches may stay as the program leaves them.
        (
            "-k",
            "regex:_kernel$",
            "-c",
            str(LAUNCHES),
            "--metrics",
            DURATION,
            "--cache-control",
            "none",
        ),
    )
    first, last = once(launches)
    times: dict[Kernel, list[float]] = defaultdict(list)
    for launch in launches[first:last]:
        (took,) = (value for (_, name), value in launch.metrics.items() if name == DURATION)
        times[launch.kernel].append(took * 1e-3)
    totals = {kernel: sum(took) for kernel, took in times.items()}
    whole = sum(totals.values())
    hottest = sorted(totals, key=lambda kernel: -totals[kernel])
    print(f"{' '.join(command[1:])}: {last - first} launches, {whole:.1f} us one by one")
    for kernel in hottest[:SHOWN]:
        count = len(times[kernel])
        share, mean = 100 * totals[kernel] / whole, totals[kernel] / count
        print(f"{share:5.1f} % {count:4d} x {mean:7.2f} us  {kernel}")
    for kernel in hottest[:DETAILED]:
        alike = [i for i in range(first, last) if launches[i].kernel == kernel]
        before = launches[: alike[len(alike) // 2]]
        skip = sum(launch.kernel.function == kernel.function for launch in before)
        choice = ("-k", f"regex:^{kernel.function}$", "-s", str(skip), "-c", "1")
        sections = [part for name in SECTIONS for part in ("--section", name)]
        (found,) = profile(command, (*choice, *sections, "--metrics", f"regex:{STALLS}"))
        print(found.kernel)
        for line in describe(found.metrics):
            print(f"  {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
