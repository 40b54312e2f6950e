"""Where an export writes: one at a time, and nothing is left of one that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bitmtp_edge.bundle import WEIGHTS_FILE, Bundle
from bitmtp_edge.errors import UserError
from bitmtp_edge.export.pipeline import export_bundle
from bitmtp_edge.export.target_folder import LOCK_FILE, new_folder, resolve_target

from .tiny_models import Tiny


def test_a_second_export_to_the_same_target_is_refused(tiny_llama: Tiny, tmp_path: Path) -> None:
    target = tmp_path / "b"
    with new_folder(target, 0, force=False) as folder:
        (folder / WEIGHTS_FILE).write_bytes(b"of the first")
        with pytest.raises(UserError, match=r"another export to .*b is running"):
            export_bundle(tiny_llama.path, target)
        assert (folder / WEIGHTS_FILE).read_bytes() == b"of the first"
        export_bundle(tiny_llama.path, tmp_path / "c")


def test_a_killed_export_holds_nothing(tiny_llama: Tiny, tmp_path: Path) -> None:
    (tmp_path / "b.partial").mkdir()
    for name in (LOCK_FILE, WEIGHTS_FILE):
        (tmp_path / "b.partial" / name).write_bytes(b"half")
    bundle = export_bundle(tiny_llama.path, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert {path.name for path in bundle.path.iterdir()} == {*bundle.manifest.files, "bundle.json"}


def test_a_bundle_that_appeared_meanwhile_is_kept(tiny_bundle: Bundle, tmp_path: Path) -> None:
    target = tmp_path / "b"
    assert resolve_target(target, force=False) == target
    target.symlink_to(tiny_bundle.path)
    with pytest.raises(UserError, match="add --force"), new_folder(target, 0, force=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_link_to_a_bundle_stays_a_link(tiny_llama: Tiny, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    export_bundle(tiny_llama.path, real)
    link.symlink_to("real")
    export_bundle(tiny_llama.path, link, context=512, force=True)
    assert link.is_symlink() and Bundle.open(real).model.context == 512
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_links_in_a_circle(tiny_llama: Tiny, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="choose another name"):
        export_bundle(tiny_llama.path, tmp_path / "a")


def test_what_is_in_the_way_is_told_before_the_work(tiny_llama: Tiny, tmp_path: Path) -> None:
    export_bundle(tiny_llama.path, tmp_path / "b")
    (tmp_path / "b.replaced").mkdir()
    with pytest.raises(UserError, match="replaced is in the way"):
        export_bundle(tmp_path / "no source", tmp_path / "b", force=True)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupted_export_leaves_nothing(name: str, tiny_llama: Tiny, tmp_path: Path) -> None:
    terminate_itself = (
        "import os, signal, sys\n"
        "from bitmtp_edge.cli import main\n"
        "from bitmtp_edge.export import pipeline\n"
        "quantize = pipeline.quantize_nested\n"
        "def terminated(*arguments):\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    return quantize(*arguments)\n"
        "pipeline.quantize_nested = terminated\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", terminate_itself, "export", tiny_llama.path, "-o", "b"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("bitmtp-edge: export interrupted: b was not written\n")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
