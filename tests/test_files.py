"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bitmtp_edge.files import new_file


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with new_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left") as caught, new_file(path) as file:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_told_is_the_name_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "none" / "file"
    with pytest.raises(FileNotFoundError) as caught, new_file(path):
        pass
    assert caught.value.filename == str(path)


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, new_file(tmp_path / "file"):
        (tmp_path / "other").read_bytes()
    assert caught.value.filename == str(tmp_path / "other")


def test_links_are_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to("target")
    with new_file(link) as file:
        file.write(b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
