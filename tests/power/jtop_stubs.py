"""Stand-ins for jetson-stats: one that works, and those that fail in every way seen or feared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import trees


def rail(volts: int, amperes: int, **more: object) -> dict[str, object]:
    return {
        "volt": volts,
        "curr": amperes,
        "power": volts * amperes // 1000,
        "online": True,
        **more,
    }


# As an Orin Nano's jtop told it.
NANO: dict[str, Any] = {
    "rail": {"VDD_CPU_GPU_CV": rail(4928, 216), "VDD_SOC": rail(4936, 312)},
    "tot": rail(4936, 1040, name="VDD_IN", avg=4800),
}

_CLASS = """
import os, sys, time

class JtopException(Exception):
    pass

class jtop:
    def __init__(self): self.told = 0
    def __enter__(self):
        {enter}
        return self
    def __exit__(self, *error): pass
    def ok(self):
        {ok}
    @property
    def power(self):
        {power}
"""


def stub(
    folder: Path,
    power: str = repr(NANO),
    *,
    enter: str = "pass",
    ok: str = "time.sleep(0.02); return True",
    on_import: str = "",
) -> Path:
    """A package ``jtop`` in ``folder``; the arguments are Python."""
    source = on_import + _CLASS.format(enter=enter, ok=ok, power=f"return {power}")
    return trees.package(folder, "jtop", source)


HANGS = {
    "while it is imported": {"on_import": "import time; time.sleep(600)\n"},
    "while it connects": {"enter": "time.sleep(600)"},
    "before its first answer": {"ok": "time.sleep(600)"},
    "busily": {"ok": "\n        while True: pass"},
}
FAILS = {
    "no service": (
        {"enter": "raise JtopException('The jtop.service is not active. Please run:\\nx')"},
        "JtopException: The jtop.service is not active. Please run: x",
    ),
    "no group": (
        {"enter": 'raise JtopException("I can\'t access jtop.service.\\nPlease logout")'},
        "JtopException: I can't access jtop.service. Please logout",
    ),
    "another version": (
        {"enter": "raise JtopException('Mismatch version jtop service: [4.3] and client: [7.0]')"},
        "JtopException: Mismatch version jtop service: [4.3] and client: [7.0]",
    ),
    "a broken install": ({"on_import": "import no_such_module\n"}, "No module named"),
    "an exit": ({"enter": "sys.exit(3)"}, "SystemExit: 3"),
    "the service ends": ({"ok": "return False"}, "the service has ended"),
    "it dies": ({"enter": "os._exit(9)"}, "it ended without an answer"),
    "it dies by a signal": ({"ok": "os.kill(os.getpid(), 9)"}, "it ended without an answer"),
}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in NANO.items() if key not in keys}


def total(**changed: object) -> dict[str, Any]:
    return {**NANO, "tot": {**NANO["tot"], **changed}}


LIES: dict[str, tuple[Any, str]] = {
    "an empty dict": ({}, "finds no power sensor"),
    "None": (None, "finds no power sensor"),
    "no total": (without("tot"), "tells no total"),
    "a total of another kind": ({**NANO, "tot": 5133}, "tells no total"),
    "a total without power": ({**NANO, "tot": {"name": "VDD_IN"}}, "tells no power of total"),
    "power as text": (total(power="5133"), "tells no power of total"),
    "power that is no number": (total(power=float("nan")), "tells no power of total"),
    "power that is true": (total(power=True), "tells no power of total"),
    "power that is not its volts and amperes": (
        total(power=50133),
        "tells 50133 mW of total, its volts and amperes 5133.44",
    ),
    "power of 400 digits": (total(power=10**400), "tells no power of total"),
    "no power": (total(power=0, volt=0), "a rail above the whole board's 0 mW"),
    "less than none": (
        {"tot": {"power": -5, "name": "VDD_IN"}},
        "the total (VDD_IN) reads -5 mW, which cannot be",
    ),
    "a board below its rails": (
        total(power=1000, curr=203),
        "a rail above the whole board's 1000 mW",
    ),
    "a sum that is none": (
        {**NANO, "tot": {"power": 9000}},
        "a total of 9000 mW, its rails 2604",
    ),
    "a total of nothing": ({"rail": {}, "tot": {"power": 0}}, "no power rail is told"),
    "rails of another kind": ({**NANO, "rail": {"VDD_SOC": 3}}, "tells no power of VDD_SOC"),
}
