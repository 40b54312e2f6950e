#!/usr/bin/env python3
"""python tools/sass_summary.py LIBRARY [--arch sm_87] [--cuobjdump PROGRAM]

Prints, of every kernel that LIBRARY has for an architecture, its registers, its stack (spilled
registers among it), and how many integer dot products and tensor-core multiplications its machine
code has, as a Markdown table. Kernels that differ in template arguments share a line, but for those
of different weight kinds. cuobjdump is part of the CUDA toolkit, and of nvidia-cuda-cuobjdump.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

KINDS = (
    "ternary",
    "4-bit base",
    "8-bit composed",
    "int8",
)  # enum class Kind of plugins/cuda/codes.cuh
# What an instruction's name begins with, and what the table calls it.
COUNTED = {"IDP.4A": "dp4a", "IMMA": "int8 mma", "HMMA": "fp16 mma", "STL": "spill stores"}


@dataclass
class Kernel:
    """One form of a kernel. counts: instructions by the names of COUNTED."""

    name: str
    registers: int = 0
    stack: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED.values(), 0))


def short_name(mangled: str) -> str:
    """Its name without namespaces, arguments and all template arguments but the weight kind."""
    name = mangled
    for end in (length.end() for length in re.finditer(r"\d(?=[a-z])", mangled)):
        for start in (end - 2, end - 1):  # what stands before a name: its length
            part = mangled[end:][: int(mangled[start:end])] if mangled[start:end].isdigit() else ""
            if part.endswith("_kernel"):
                name = part
    kind = re.search(r"4KindE(\d)", mangled)
    return f"{name}, {KINDS[int(kind.group(1))]}" if kind else name


def read_usage(lines: Iterable[str]) -> dict[str, Kernel]:
    """Kernels by mangled name, of `cuobjdump -res-usage`."""
    kernels: dict[str, Kernel] = {}
    mangled = ""
    for line in lines:
        if named := re.search(r"Function (\S+):", line):
            mangled = named.group(1)
        elif numbers := re.search(r"REG:(\d+) STACK:(\d+)", line):
            registers, stack = (int(x) for x in numbers.groups())
            kernels[mangled] = Kernel(short_name(mangled), registers, stack)
    return kernels


def count_instructions(lines: Iterable[str], kernels: dict[str, Kernel]) -> None:
    """Adds what `cuobjdump -sass` shows of each kernel to its counts."""
    kernel: Kernel | None = None
    for line in lines:
        if named := re.search(r"Function : (\S+)", line):
            kernel = kernels.get(named.group(1))
        elif kernel is not None and (
            shown := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?(\S+)", line)
        ):
            for start, called in COUNTED.items():
                if shown.group(1).startswith(start):
                    kernel.counts[called] += 1


def summarise(library: str, arch: str, cuobjdump: str) -> dict[str, list[Kernel]]:
    """The forms of every kernel by short name. ValueError where there are none for ``arch``."""

    def lines(what: str) -> list[str]:
        command = [cuobjdump, what, "-arch", arch, library]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    kernels = read_usage(lines("-res-usage"))
    if not kernels:
        raise ValueError(f"{library} has no machine code for {arch}")
    count_instructions(lines("-sass"), kernels)
    forms: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels.values():
        forms[kernel.name].append(kernel)
    return dict(sorted(forms.items()))


def span(values: Iterable[int]) -> str:
    low, *_, high = sorted([*values] * 2)
    return str(low) if low == high else f"{low}-{high}"


def table(forms: dict[str, list[Kernel]]) -> str:
    """The summary in Markdown."""
    heads = ["kernel", "forms", "registers", "stack, bytes", *COUNTED.values()]
    rows = [heads, ["---"] * len(heads)]
    for name, same in forms.items():
        counts = [span(kernel.counts[called] for kernel in same) for called in COUNTED.values()]
        registers, stack = span(k.registers for k in same), span(k.stack for k in same)
        rows.append([name, str(len(same)), registers, stack, *counts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Registers, stack and instructions of kernels.")
    parser.add_argument("library")
    parser.add_argument("--arch", default="sm_87")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    options = parser.parse_args()
    try:
        print(table(summarise(options.library, options.arch, options.cuobjdump)))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
