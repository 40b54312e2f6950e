"""What errors tell."""

from __future__ import annotations

from bitmtp_edge.errors import SettingError, missing_extra


def test_a_missing_extra_tells_how_to_get_it_from_a_checkout_too() -> None:
    assert str(missing_extra("onnx", "export")) == (
        "onnx is not installed: install the extra 'export' "
        "(from a checkout: pip install '.[export]')"
    )


def test_a_setting_at_fault_is_named_as_in_python_and_the_fault_kept_apart() -> None:
    error = SettingError("min_prefix", "is 5: expected 1 to 4")
    assert str(error) == "min_prefix is 5: expected 1 to 4"
    assert (error.setting, error.fault) == ("min_prefix", "is 5: expected 1 to 4")
