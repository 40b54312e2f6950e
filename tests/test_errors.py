"""What errors tell."""

from __future__ import annotations

from bitmtp_edge.errors import missing_extra


def test_a_missing_extra_tells_how_to_get_it_from_a_checkout_too() -> None:
    assert str(missing_extra("onnx", "export")) == (
        "onnx is not installed: install the extra 'export' "
        "(from a checkout: pip install '.[export]')"
    )
