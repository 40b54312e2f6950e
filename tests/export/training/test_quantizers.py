"""Quantisers of the forward pass against NumPy, and their straight-through gradients."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="torch is not installed: it comes with the extra 'train'"
)

from bitmtp_edge.export.training.quantizers import (  # noqa: E402
    int8_activations,
    int8_rows,
    row_codes,
    ternary,
    ternary_codes,
)


def weight(rows: int = 24, width: int = 256) -> torch.Tensor:
    """Rows of very different sizes, one of them zero."""
    generator = torch.Generator().manual_seed(rows)
    values = torch.randn(rows, width, generator=generator)
    values *= torch.logspace(-4, 1, rows).unsqueeze(1)
    values[5] = 0
    return values


@pytest.mark.parametrize("group_size", [0, 64, 128])
def test_absmean_codes(group_size: int) -> None:
    values = weight()
    codes, scales = ternary_codes(values, group_size)
    groups = values.double().numpy()
    groups = groups.reshape(1, -1) if group_size == 0 else groups.reshape(-1, group_size)
    expected = np.maximum(np.abs(groups).mean(axis=1), 1e-6).astype(np.float16)
    shape = (1,) if group_size == 0 else (24, 256 // group_size)
    assert tuple(scales.shape) == shape and scales.dtype == torch.float32
    found = scales.numpy().reshape(-1)
    assert np.array_equal(found, found.astype(np.float16))  # as it is stored
    assert (np.abs(found - expected) <= np.spacing(expected).astype(np.float32)).all()
    ratio = groups / found[:, None]
    clear = np.abs(np.abs(ratio) - 0.5) > 1e-4
    reference = np.clip(np.rint(ratio), -1, 1)
    assert np.array_equal(codes.numpy().reshape(ratio.shape)[clear], reference[clear])
    assert set(np.unique(codes.numpy())) == {-1.0, 0.0, 1.0}
    kept = (reference * found[:, None]).reshape(24, 256)
    close = clear.reshape(24, 256)
    np.testing.assert_allclose(
        ternary(values, group_size).numpy()[close], kept[close], rtol=1e-5, atol=1e-9
    )


def test_int8_table_rows() -> None:
    table = weight()
    codes, scales = row_codes(table)
    assert tuple(scales.shape) == (24,)
    found = scales.numpy()
    assert np.array_equal(found, found.astype(np.float16))
    assert codes.abs().max() == 127 and torch.equal(codes, codes.round())
    error = (int8_rows(table) - table).abs().amax(1)
    assert (error <= 0.51 * scales + 1e-9).all()  # half a step: every value is within 127 of them


@pytest.mark.parametrize("group_size", [0, 64])
def test_gradients_go_straight_through(group_size: int) -> None:
    wanted = torch.randn(24, 256, generator=torch.Generator().manual_seed(0))
    for quantised in (
        lambda values: ternary(values, group_size),
        int8_rows,
        lambda values: torch.mul(*int8_activations(values)),
    ):
        values = weight().requires_grad_()
        quantised(values).backward(wanted)
        torch.testing.assert_close(values.grad, wanted, rtol=1e-5, atol=1e-6)


def test_int8_activations_are_what_deployment_computes() -> None:
    from bitmtp_edge.export.reference_model import _int8

    values = weight()
    integers, scales = int8_activations(values)
    assert tuple(scales.shape) == (24, 1)
    product = (integers * scales).numpy()
    used = np.delete(np.arange(24), 5)
    np.testing.assert_allclose(product[used], _int8(values.numpy()[used]), rtol=1e-6)
    assert not product[5].any()


def test_int8_activations_are_exact_in_bf16() -> None:
    integers, _ = int8_activations(weight())
    assert torch.equal(integers.bfloat16().float(), integers.round())
    assert integers.abs().max().round() == 127


def test_low_precision_is_widened_first() -> None:
    values = weight().bfloat16()
    integers, scales = int8_activations(values)
    again = int8_activations(values.float())
    assert torch.equal(integers, again[0]) and torch.equal(scales, again[1])
