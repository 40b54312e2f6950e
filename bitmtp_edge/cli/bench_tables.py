"""What ``bench`` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..engines.runtimes import FULL
from .reply import describe_choice

if TYPE_CHECKING:
    from ..benchmark_report import BenchReport, PolicyReport

FEW_STEPS = 20  # a median of fewer tells little


def print_report(report: BenchReport) -> None:
    if report.synthetic:
        click.echo("synthetic acceptance: what comes of drafts is dictated, not the model's")
    threads = "" if report.threads is None else f", {report.threads} threads"
    click.echo(
        f"{report.model}, engine {report.engine}{threads}: {report.prompts} prompts, "
        f"{report.repeat} rounds, up to {report.max_new_tokens} tokens; medians"
    )
    click.echo()
    heading = ("policy", "prefill tok/s", "decode tok/s", "tokens/iter.", "accepted", "over AR")
    rows = [heading, *(_policy_row(policy) for policy in report.policies)]
    if any(policy.speedup_over_generic is not None for policy in report.policies):
        gains = [_number(policy.speedup_over_generic, "x") for policy in report.policies]
        cells = zip(rows, ["over generic", *gains], strict=True)
        rows = [(*row, cell) for row, cell in cells]
    if any(policy.joules_per_token is not None for policy in report.policies):
        energy = [(_small(p.joules_per_token), _small(p.watts)) for p in report.policies]
        both = zip(rows, [("J/token", "W"), *energy], strict=True)
        rows = [(*row, *more) for row, more in both]
    table(rows)
    _print_pairs(report)
    _print_energy(report)
    _print_runtimes(report)
    _print_iterations(report)
    _print_choices(report)
    click.echo()
    often = [step for step in report.steps if step.count >= FEW_STEPS]
    if often:
        steps = [
            (
                s.role if s.runtime is None else f"{s.runtime}: {s.role}",
                str(s.width),
                str(s.outputs),
                str(s.segment),
                f"{s.median_ms:.2f}",
                str(s.count),
            )
            for s in often
        ]
        table([("step", "width", "outputs", "segment", "ms", "count"), *steps])
    if rare := len(report.steps) - len(often):
        click.echo(f"left out: {rare} kinds of step run fewer than {FEW_STEPS} times (see --json)")
    click.echo()
    for policy in report.policies:
        if policy.python_ms_per_step is not None:
            click.echo(
                f"{_label(policy)}: Python costs {policy.python_ms_per_step:.3f} ms a step, "
                "measured with an empty plan"
            )
    for policy in report.policies:
        if policy.policy == "ar" or policy.same_tokens_as_ar is None:
            continue
        if report.synthetic and not policy.lossless:
            continue  # no text of the model's
        told = f"DIFFER from AR's: {policy.difference}"
        if not policy.lossless:
            told = f"may differ from AR's, and do, {policy.difference}"
        if policy.same_tokens_as_ar:
            told = f"are AR's, token for token ({policy.replies} replies)"
        click.echo(f"{_label(policy)}: its tokens {told}")


def _print_pairs(report: BenchReport) -> None:
    """What the last column is, and how far its pairs spread."""
    compared = [p for p in report.policies if p.policy != "ar" and p.speedup_quartiles is not None]
    if compared:
        click.echo()
    for policy in compared:
        assert policy.speedup_quartiles is not None
        first, third = policy.speedup_quartiles
        click.echo(
            f"{_label(policy)}, over AR: median of {policy.speedup_pairs} pairs, "
            f"quartiles {first:.2f} .. {third:.2f}"
        )
    if compared:
        click.echo(
            "(a pair: AR's decode seconds a token over the policy's, same prompt, same round; the "
            "rates above\nare medians of all prompts, whose quotient may be another number)"
        )


def _print_energy(report: BenchReport) -> None:
    """How far joules a token spread, and what was measured; why not, where a meter gave none."""
    if report.energy is None:
        return
    click.echo()
    for policy in report.policies:
        told = ""
        if policy.joules_quartiles is not None:
            first, third = policy.joules_quartiles
            told = (
                f": median of {policy.measured_replies} of {policy.replies} replies, "
                f"quartiles {first:.3g} .. {third:.3g}"
            )
        if policy.energy_reason is not None:
            told += f"; no figure: {policy.energy_reason}" if told else f": {policy.energy_reason}"
        click.echo(f"{_label(policy)}, J/token{told}")
    click.echo(f"(joules of decoding over generated tokens, by {report.energy})")


def _print_runtimes(report: BenchReport) -> None:
    """What the full runtime gains over the generic one, and the KV memory of each."""
    if not report.runtimes:
        return
    click.echo()
    for policy in report.policies:
        if policy.runtime == FULL and policy.speedup_over_generic is not None:
            click.echo(f"{_label(policy)}, over generic: {policy.speedup_over_generic:.2f}x")
    sizes = (f"{each.runtime} {each.kv_bytes / 2**20:.1f} MiB" for each in report.runtimes)
    click.echo(f"KV buffers: {', '.join(sizes)}")
    compared = [policy for policy in report.policies if policy.same_tokens_as_full is not None]
    different = [policy for policy in compared if not policy.same_tokens_as_full]
    for policy in different:
        click.echo(f"{_label(policy)}: its tokens DIFFER from the full runtime's")
    if compared and not different:
        click.echo("every runtime's tokens are the full one's, token for token")


def _print_iterations(report: BenchReport) -> None:
    """What an iteration gives and costs, and the speed-up that follows."""
    drafting = [policy for policy in report.policies if policy.acceptance_rate is not None]
    if not drafting:
        return
    click.echo()
    heading = (
        "an iteration",
        "h",
        "a",
        "verified",
        "draft cost",
        "verify cost",
        "predicted",
        "ratio",
    )
    rows = [
        (
            _label(policy),
            _number(policy.mean_confident),
            _number(policy.mean_accepted),
            f"{policy.verified_share:.1%}",
            _number(policy.draft_cost),
            _number(policy.verify_cost),
            _number(policy.predicted_speedup, "x"),
            _number(policy.measured_over_predicted),
        )
        for policy in drafting
    ]
    table([heading, *rows])
    click.echo(
        "(h: confident drafts, a: accepted; costs in AR steps; predicted: tokens an iteration / "
        "(draft cost +\nverified share x verify cost); ratio: over AR, measured / predicted)"
    )
    if report.noisy:
        click.echo(
            "noisy run, so no ratio: of one step's times the third quartile is "
            f"{report.step_spread:.1f} times the first; was something\nelse busy here?"
        )


def _print_choices(report: BenchReport) -> None:
    """What block auto chose; also where that was never to draft."""
    for policy in report.policies:
        for choice in policy.settings.get("chosen", ()):
            told = describe_choice(choice)
            click.echo(f"{_label(policy)}: {told}, {choice['iterations']} iterations")


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.2f}{unit}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _label(report: PolicyReport) -> str:
    settings = ("gamma", "block", "min_prefix", "trace")
    given = [(name, report.settings.get(name)) for name in settings]
    named = [f"{name.replace('_', '-')} {value}" for name, value in given if value is not None]
    label = ", ".join([report.policy, *named])
    return label if report.runtime is None else f"{report.runtime}: {label}"


def _policy_row(report: PolicyReport) -> tuple[str, ...]:
    accepted, speedup = report.acceptance_rate, report.speedup_over_ar
    return (
        _label(report),
        f"{report.prefill_tokens_per_s:.1f}",
        f"{report.decode_tokens_per_s:.1f}",
        f"{report.tokens_per_iteration:.2f}",
        "-" if accepted is None else f"{accepted:.1%}",
        "-" if speedup is None else f"{speedup:.2f}x",
    )


def table(rows: list[tuple[str, ...]]) -> None:
    """First column to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        click.echo("  ".join([first.ljust(widths[0]), *cells]))
