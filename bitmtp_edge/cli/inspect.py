"""Show what a bundle holds: model, planes, KV costs, replay states."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..bundle import Bundle, DecodingDefaults, ModelFacts
from ..errors import UserError, one_line
from ..inspection import summarise
from .options import EngineChoice, engine_options

if TYPE_CHECKING:
    from ..decode.costs import CostTable


@click.command(name="inspect", help=__doc__)
@click.argument("bundle", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--no-hashes", is_flag=True, help="Check sizes only, do not read the files through.")
@click.option(
    "--costs",
    "with_costs",
    is_flag=True,
    help="Also what a step of each replay state takes on this machine: measured once, then saved.",
)
@click.option("--measure", is_flag=True, help="With --costs: measure anew, whatever is saved.")
@engine_options
def command(
    bundle: str,
    as_json: bool,
    no_hashes: bool,
    with_costs: bool,
    measure: bool,
    engine: EngineChoice,
) -> None:
    if measure and not with_costs:
        raise UserError("--measure says that --costs measures anew: add --costs")
    if not with_costs and engine != EngineChoice("auto", None, 0):
        raise UserError("--engine, --provider and --threads say what --costs measures: add --costs")
    opened = Bundle.open(bundle, check_hashes=not no_hashes)
    facts = summarise(opened)
    costs = None
    if with_costs:
        from ..saved_costs import costs_of

        with engine.open(bundle) as session:
            costs = costs_of(
                session.bundle, session.engine, session.states, session.notice, anew=measure
            )
        facts["costs"] = asdict(costs)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
        return
    model, replay = opened.model, opened.replay
    planes, step, kv = facts["plane_bytes"], facts["step_weight_bytes"], facts["kv_bytes_per_token"]
    heads = f"{model.num_heads} heads, {model.num_kv_heads} KV heads of {model.head_dim}"
    tied = "tied embedding and head" if model.tied_embeddings else "separate head"
    rows = [
        ("model", one_line(f"{model.name} ({model.family})")),
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
        ("replay states", _states(len(facts["replay_states"]), len(replay.segments))),
    ]
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        click.echo(f"{label:{width}}  {text}")
    _print_states(
        [state for state in facts["replay_states"] if state["segment"] == replay.segments[0]], costs
    )


def _print_states(states: list[dict[str, Any]], costs: CostTable | None) -> None:
    """What a step costs; multiply-adds are without attention, whose work grows with the history."""
    heading = f"  {'role':6}  {'width':>5}  {'outputs':>7}  {'M mult-adds':>11}  {'KV written':>10}"
    if costs is not None:
        behind = [f"ms behind {rows}" for rows in (costs.short, costs.long)]
        heading += "".join(f"  {each:>14}" for each in behind) + f"  {'AR steps':>8}"
    click.echo(heading)
    for state in states:
        line = (
            f"  {state['role']:6}  {state['width']:5}  {state['outputs']:7}  "
            f"{state['multiply_adds'] / 1e6:11,.1f}  {state['kv_written_bytes'] / 2**10:6,.1f} KiB"
        )
        if costs is not None:
            shape = state["role"], state["width"], state["outputs"]
            short, long = (costs.ms(*shape, rows) for rows in (costs.short, costs.long))
            line += f"  {short:14,.3f}  {long:14,.3f}  {short / costs.ar_ms:8,.2f}"
        click.echo(line)

    if costs is not None:
        click.echo(
            f"(ms: of one step, window included, behind {costs.short} and {costs.long} rows of "
            "history; AR steps: behind\n"
            f"{costs.short}, over an autoregressive step. A wider step is taken to be no cheaper: "
            "where it was measured so, the mean\nof both stands for both)"
        )


def _states(count: int, segments: int) -> str:
    return f"{count // segments} in each of {segments} segments:" if segments > 1 else f"{count}:"


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
