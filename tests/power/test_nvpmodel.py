"""What nvpmodel prints, and its configuration, in every form that was seen."""

from __future__ import annotations

import pytest

from bitmtp_edge.power.nvpmodel import Current, Done, parse_conf, parse_query, parse_status

from .nvpmodel_stub import CONF

VERBOSE = """\
NVPM VERB: parsing done for /etc/nvpmodel.conf
NVPM VERB: Current mode: NV Power Mode: MAXN
0
NVPM VERB: PM_CONFIG: DEFAULT=MAXP_CORE_ARM(3)
NVPM VERB: ACTIVE=MAXN(0)
NVPM VERB: POWER_MODEL: ID=0 NAME=MAXN
NVPM VERB: /sys/devices/system/cpu/cpu1/online 1
NVPM VERB: value = 1
"""


@pytest.mark.parametrize(
    ("text", "current"),
    [
        ("NV Power Mode: 15W\n0\n", Current("15W", 0)),
        ("NV Power Mode: MAXN_SUPER\n2", Current("MAXN_SUPER", 2)),
        (VERBOSE, Current("MAXN", 0)),
        ("NVPM WARN: fan mode is not set!\n\nNV  Power Mode: 5W\n", Current("5W", None)),
        ("NVPM WARN: fan mode is not set!\n\nNV Power Mode :  5W \r\n 1 \r\n", Current("5W", 1)),
        ("NV Power Mode[0]: 15W", Current("15W", 0)),
        ("NV Power Mode: MODE_30W", Current("MODE_30W", None)),
        ("NVPM VERB: ACTIVE=MODE_30W(2)", Current("MODE_30W", 2)),
        ("NVPM WARN: no mode is configured\n", None),
        ("NV Power Mode:\n", None),
        ("", None),
    ],
)
def test_query(text: str, current: Current | None) -> None:
    assert parse_query(text) == current


@pytest.mark.parametrize(
    ("text", "number"),
    [("pmode:0002 fmode:fan_mode_quiet", 2), ("pmode:0000\n", 0), ("", None), ("fmode:1", None)],
)
def test_status(text: str, number: int | None) -> None:
    assert parse_status(text) == number


def test_a_table() -> None:
    table = parse_conf(CONF)
    assert [(mode.id, mode.name) for mode in table.modes] == [
        (0, "MAXN_SUPER"),
        (1, "10W"),
        (2, "15W"),
        (3, "25W"),
    ]
    assert table.default == 2
    assert table.modes[1].settings == {
        "CPU_ONLINE CORE_0": "1",
        "TPC_POWER_GATING TPC_PG_MASK": "8",
        "GPU MAX_FREQ": "612000000",
    }
    assert table.named("10W") == table.numbered(1) == table.modes[1]
    assert table.named("X") is table.named("CPU_ONLINE") is table.numbered(9) is None


def test_order_and_spacing_do_not_matter() -> None:
    table = parse_conf(
        "<PM_CONFIG   DEFAULT = 1>\r\n"
        "  <  POWER_MODEL NAME = MODE_15W   ID=1 >\r\n"
        "\tGPU   MAX_FREQ\t420750000 # Hz\r\n"
        "#< POWER_MODEL ID=7 NAME=GONE >\r\n"
        "< PARAM TYPE=FILE NAME=X ID=5 >\r\n"
        "< POWER_MODEL ID=0 NAME=MAXN >\r\n"
    )
    assert [(mode.id, mode.name) for mode in table.modes] == [(0, "MAXN"), (1, "MODE_15W")]
    assert table.modes[1].settings == {"GPU MAX_FREQ": "420750000"}
    assert table.default == 1


@pytest.mark.parametrize(
    "text",
    ["", "< POWER_MODEL NAME=15W >", "< POWER_MODEL ID=x NAME=15W >", "< POWER_MODEL ID=0 >", "<>"],
)
def test_no_modes(text: str) -> None:
    table = parse_conf(text)
    assert (table.modes, table.default) == ((), None)


def test_what_takes_a_reboot() -> None:
    maxn, ten, fifteen, _ = parse_conf(CONF).modes
    assert maxn.gates_as(fifteen)
    assert not ten.gates_as(maxn) and not maxn.gates_as(ten)


def test_complaints() -> None:
    assert Done(1, "\nNVPM WARN: a\nNVPM ERROR: b\nNVPM ERROR: c\n").complaint == "NVPM ERROR: b"
    assert Done(1, "a\nb\n").complaint == "b"
    assert Done(1, "").complaint == "it said nothing"


def test_numbers_of_no_mode() -> None:
    long = "9" * 5000
    table = parse_conf(f"< POWER_MODEL ID={long} NAME=X >\n< PM_CONFIG DEFAULT={long} >\n")
    assert (table.modes, table.default) == ((), None)
    assert parse_query(f"NV Power Mode: 15W\n{long}\n") == Current("15W", None)
    assert parse_status(f"pmode:{long}") is None
