"""Bundles with one thing wrong: copies that share their files, edits of bundle.json, and the one
line that each is refused with."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bitmtp_edge.bundle import BUNDLE_FILE, Bundle, sha256_of
from bitmtp_edge.errors import UserError

Edit = Callable[[dict[str, Any]], object]


def link_copy(source: Path, target: Path) -> Path:
    """A copy of a bundle whose files are hard links but for bundle.json: replace, never write."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.name == BUNDLE_FILE:
            shutil.copyfile(file, target / file.name)
        else:
            os.link(file, target / file.name)
    return target


def edit(folder: Path, change: Edit) -> Path:
    """Applies ``change`` to the object in bundle.json."""
    path = folder / BUNDLE_FILE
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    return folder


def put(*path: Any, value: Any) -> Edit:
    """An edit that sets one place."""

    def change(manifest: dict[str, Any]) -> None:
        holder: Any = manifest
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return change


def drop(*path: Any) -> Edit:
    def change(manifest: dict[str, Any]) -> None:
        holder: Any = manifest
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return change


def refusal(path: Path) -> str:
    """The line with which ``path`` is refused."""
    with pytest.raises(UserError) as caught:
        Bundle.open(path)
    line = str(caught.value)
    assert "\n" not in line
    return line


def replace_file(folder: Path, name: str, data: bytes, *, listed: bool = False) -> None:
    """Replaces a file's bytes; ``listed`` makes bundle.json agree."""
    (folder / name).unlink()
    (folder / name).write_bytes(data)
    if listed:
        entry = {"bytes": len(data), "sha256": sha256_of(folder / name)}
        edit(folder, lambda value: value["files"].update({name: entry}))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every value inside ``value``, containers included."""
    found = []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        found += [(*path, key), *leaves(inner, (*path, key))]
    return found


_NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    7,
    8,
    64,
    127,
    255,
    4096,
    2**31 - 1,
    2**31,
    2**32 + 8,
    2**63,
    2**64,
    10**40,
)
_OTHERS = (
    None,
    True,
    "",
    "x",
    "../x",
    "\ud800",
    [],
    {},
    0.5,
    float("nan"),
    float("inf"),
    [0],
    "fp16",
)


def mutate(value: dict[str, Any], paths: list[tuple[Any, ...]], chance: random.Random) -> str:
    """Changes one random place of ``value``; what was done."""
    path = chance.choice(paths)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    old = holder[path[-1]]
    way = chance.randrange(6)
    if way == 0:
        del holder[path[-1]]
        return f"{path} removed"
    if way == 1 and isinstance(holder, list):
        holder.insert(path[-1], copy.deepcopy(old))
        return f"{path} doubled"
    if way <= 3 and type(old) is int:
        new: Any = chance.choice([old + 1, old - 1, old * 2, old // 2, -old, *_NUMBERS])
    elif way <= 3 and isinstance(old, str):
        twin = value
        other = chance.choice(paths)
        for key in other:
            twin = twin[key]
        new = twin if isinstance(twin, str) else f"{old}x"
    else:
        new = chance.choice([*_NUMBERS, *_OTHERS])
    holder[path[-1]] = new
    return f"{path}: {old!r:.60} -> {new!r:.60}"
