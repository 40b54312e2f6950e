"""Values of fields that no plugin takes."""

from __future__ import annotations

BAD_VALUES: dict[str, tuple[int | float | str, ...]] = {
    "rows": (0, -1),
    "width": (0, -7),
    "group_size": (-64, 32, 100),
    "top_k": (0, 17, -1),
    "num_heads": (5, 0, 1026),
    "num_kv_heads": (4, 0),
    "head_dim": (80, 0),
    "kind": ("w4", "fp16 "),
    "kv": ("int8", "NESTED"),
    "activation": ("gelu", "silu\0silu"),
    "epsilon": (-1.0, float("nan")),
    "softmax_scale": (0.0, -1.0, float("nan")),
    "input_ports": (0, -1, 1 << 20),
    "output_ports": (0, -1, 1 << 20),
}
LABELS = {"num_heads": "heads", "num_kv_heads": "KV heads"}
"""What messages call a field, where that is not its name."""
