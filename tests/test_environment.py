"""What a report tells of its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitmtp_edge import environment


@pytest.mark.parametrize(
    ("cpuinfo", "model", "told"),
    [
        ("processor : 0\nmodel name : A CPU @ 3 GHz\n", None, "A CPU @ 3 GHz"),
        ("processor : 0\nCPU part : 0xd42\n", "NVIDIA Jetson Orin NX\0", "NVIDIA Jetson Orin NX"),
        ("processor : 0\n", None, None),
        (None, None, None),
    ],
)
def test_the_processor(
    cpuinfo: str | None, model: str | None, told: str | None, tmp_path: Path
) -> None:
    """Boards tell two of them apart only by the device tree."""
    for name, text in (("cpuinfo", cpuinfo), ("device-tree/model", model)):
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    assert environment._processor(tmp_path) == told
