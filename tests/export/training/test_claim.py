"""Folders that one process at a time writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge.errors import UserError
from bitmtp_edge.export.training.claim import claimed


def test_another_is_kept_out_until_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claimed(folder):
        told = r"another run writes to .*run: wait for it, or stop it"
        with pytest.raises(UserError, match=told), claimed(folder):
            pass
        assert folder.is_dir()
    assert not folder.exists()
    with claimed(folder):
        pass


def test_folders_that_stay_empty_go_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no samples"), claimed(tmp_path / "run" / "rows"):
        raise UserError("no samples")
    assert not list(tmp_path.iterdir())
    with claimed(tmp_path / "run" / "rows"):
        (tmp_path / "run" / "rows" / "file").write_bytes(b"")
    assert [path.name for path in (tmp_path / "run" / "rows").iterdir()] == ["file"]


def test_what_a_killed_run_left_goes(tmp_path: Path) -> None:
    for name in (".lock", "state.pt.123.partial", "log.csv"):
        (tmp_path / name).write_bytes(b"")
    with claimed(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log.csv"]
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(UserError, match=r"cannot write to .*run: .*Not a directory"),
        claimed(tmp_path / "file" / "run"),
    ):
        pass
