"""Show what a bundle holds: model, planes, KV costs, replay states."""

from __future__ import annotations

import json
from typing import Any

import click

from ..bundle import Bundle, DecodingDefaults, ModelFacts
from ..inspection import summarise


@click.command(name="inspect", help=__doc__)
@click.argument("bundle", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--no-hashes", is_flag=True, help="Check sizes only, do not read the files through.")
def command(bundle: str, as_json: bool, no_hashes: bool) -> None:
    opened = Bundle.open(bundle, check_hashes=not no_hashes)
    facts = summarise(opened)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    model, replay = opened.model, opened.replay
    planes, step, kv = facts["plane_bytes"], facts["step_weight_bytes"], facts["kv_bytes_per_token"]
    heads = f"{model.num_heads} heads, {model.num_kv_heads} KV heads of {model.head_dim}"
    tied = "tied embedding and head" if model.tied_embeddings else "separate head"
    rows = [
        ("model", f"{model.name} ({model.family})"),
        ("shape", f"{model.num_layers} layers, hidden {model.hidden_size}, {heads}"),
        ("", f"intermediate {model.intermediate_size}, vocabulary {model.vocab_size}, {tied}"),
        ("context", f"{model.context:,} tokens"),
        ("weights", f"{model.weights}, {_mib(facts['weights_bytes'])}"),
        *((f"  {name}", _mib(size)) for name, size in planes.items()),
        ("masks", _masks(model)),
        ("a step reads", f"draft {_mib(step['draft'])}, verify {_mib(step['verify'])}"),
        ("KV a token", f"fp16 {kv['fp16']:,} B, KV8 {kv['kv8']:,} B, KV4 {kv['kv4']:,} B"),
        ("KV stored as", model.kv),
        ("draft widths", _numbers(replay.draft_widths)),
        ("verify widths", _numbers(replay.verify_widths)),
        ("segments", _numbers(replay.segments)),
        ("  KV buffer", ", ".join(_mib(size) for size in facts["kv_buffer_bytes"].values())),
        ("  workspace", f"{_mib(facts['kv_workspace_bytes'])} of each, {replay.max_width} rows"),
        ("operators", ", ".join(facts["operators"])),
        ("decoding", _decoding(opened.decoding)),
        ("replay states", f"{len(facts['replay_states'])}, the same in every segment:"),
    ]
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        click.echo(f"{label:{width}}  {text}")
    _print_states([s for s in facts["replay_states"] if s["segment"] == replay.segments[0]])


def _print_states(states: list[dict[str, Any]]) -> None:
    """What a step costs, attention apart, whose work grows with the history."""
    click.echo(
        f"  {'role':6}  {'width':>5}  {'outputs':>7}  {'M mult-adds':>11}  {'KV written':>10}"
    )
    for state in states:
        click.echo(
            f"  {state['role']:6}  {state['width']:5}  {state['outputs']:7}  "
            f"{state['multiply_adds'] / 1e6:11,.1f}  {state['kv_written_bytes'] / 2**10:6,.1f} KiB"
        )


def _decoding(defaults: DecodingDefaults) -> str:
    settings = {
        "gamma": defaults.gamma,
        "block": defaults.block,
        "tau": defaults.tau,
        "min-prefix": defaults.min_prefix,
    }
    given = [f"{name} {value}" for name, value in settings.items() if value is not None]
    return ", ".join([defaults.policy, *given])


def _masks(model: ModelFacts) -> str:
    if not model.mask_embeddings:
        return "none"
    return f"{model.mask_embeddings}, {model.block_attention} blocks"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _numbers(values: tuple[int, ...]) -> str:
    return " ".join(str(value) for value in values)
