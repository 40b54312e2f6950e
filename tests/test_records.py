"""JSON objects to dataclasses, and the field that an error names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.records import read_record


@dataclass(frozen=True)
class Inner:
    number: int
    ratio: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    flag: bool
    inner: Inner
    sizes: tuple[int, ...]
    table: dict[str, Inner]
    maybe: int | None
    mixed: dict[str, int | float | str] = field(default_factory=dict)


GOOD: dict[str, Any] = {
    "name": "n",
    "flag": True,
    "inner": {"number": 1},
    "sizes": [1, 2],
    "table": {"a": {"number": 2, "ratio": 3}},
    "maybe": None,
}


def test_everything_it_understands() -> None:
    value = {**GOOD, "mixed": {"i": 1, "f": 1.5, "s": "x"}}
    read = read_record(Outer, value, "file")
    assert read == Outer(
        "n", True, Inner(1), (1, 2), {"a": Inner(2, 3.0)}, None, {"i": 1, "f": 1.5, "s": "x"}
    )
    assert type(read.table["a"].ratio) is float
    assert type(read.mixed["i"]) is int and type(read.mixed["f"]) is float
    assert read_record(Outer, {**GOOD, "maybe": 7}, "file").maybe == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "file.name: expected str, found null"),
        ({"name": "\udc00"}, "file.name: '\\udc00' is not valid Unicode"),
        ({"flag": 1}, "file.flag: expected bool, found the number 1"),
        ({"inner": 1}, "file.inner: expected an object, found the number 1"),
        ({"inner": {}}, "file.inner: field 'number' is missing"),
        ({"inner": {"number": 1.0}}, "file.inner.number: expected int, found the number 1.0"),
        ({"inner": {"number": False}}, "file.inner.number: expected int, found a boolean"),
        ({"inner": {"number": 1, "ratio": "x"}}, "file.inner.ratio: expected float"),
        (
            {"inner": {"number": 1, "ratio": 10**400}},
            "file.inner.ratio: expected a number of at most 308 digits",
        ),
        ({"inner": {"number": 1, "other": 2}}, "file.inner: unknown field 'other'"),
        ({"sizes": {}}, "file.sizes: expected a list, found an object"),
        ({"sizes": [1, "2"]}, "file.sizes[1]: expected int, found a string"),
        ({"table": []}, "file.table: expected an object, found a list"),
        ({"table": {"a": {"number": []}}}, "file.table['a'].number: expected int, found a list"),
        ({"table": {"\ud800": {"number": 1}}}, "file.table: '\\ud800' is not valid Unicode"),
        ({"maybe": "x"}, "file.maybe: expected int or NoneType, found a string"),
        ({"mixed": {"a": None}}, "file.mixed['a']: expected int or float or str, found null"),
        ({"mixed": {"a": True}}, "file.mixed['a']: expected int or float or str, found a boolean"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_record(Outer, {**GOOD, **change}, "file")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", [n for n in GOOD])
def test_a_missing_field(name: str) -> None:
    value = {key: item for key, item in GOOD.items() if key != name}
    with pytest.raises(UserError, match=f"^file: field '{name}' is missing$"):
        read_record(Outer, value, "file")


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_not_an_object(value: object) -> None:
    with pytest.raises(UserError, match=r"^file: expected an object, found"):
        read_record(Outer, value, "file")
