"""The page of a profile: one file of HTML that needs no other, and no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..wording import counted
from . import pareto, power_plot
from .comparison import RULE, Comparison
from .report import Conditions, ProfilePoint, ProfileReport
from .statistics import FLOOR, MIN_ROUNDS, Estimate
from .svg import clean

# Colours of marks keep apart for eyes that confuse red with green, on white as on black.
STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --text: #1a1f26; --soft: #5a6472;
  --grid: #e2e6eb; --panel: #f5f7f9; --c0: #0072b2; --c1: #d55e00; --c2: #009e73;
  --c3: #b0508a; --c4: #9a7200; --c5: #3aa0dd; }
@media (prefers-color-scheme: dark) { :root { --page: #10151b; --text: #e4e8ee; --soft: #9ba6b4;
  --grid: #2a323c; --panel: #171d25; --c0: #56b4e9; --c1: #ff9248; --c2: #35c99d;
  --c3: #ec9bc8; --c4: #ecc04d; --c5: #9db4ff; } }
body { margin: 0 auto; max-width: 860px; padding: 24px 20px 60px; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 34px 0 8px; }
p { margin: 8px 0; } .soft { color: var(--soft); } .warn { border-left: 4px solid var(--c1);
  background: var(--panel); padding: 8px 12px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; width: 100%; }
th, td { padding: 5px 8px; text-align: right; border-bottom: 1px solid var(--grid);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: var(--soft); }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { color: var(--soft); white-space: nowrap; vertical-align: top; }
code { font: 13px ui-monospace, monospace; } .changed { font-weight: 700; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.legend svg { display: inline-block; width: 18px; height: 18px; vertical-align: -4px; }
.legend span { margin-right: 16px; white-space: nowrap; font-size: 14px; }
text { fill: var(--text); } text.soft { fill: var(--soft); } .middle { text-anchor: middle; }
.end { text-anchor: end; } .label { font-weight: 600; }
.grid { stroke: var(--grid); } .mark { stroke: var(--page); stroke-width: 1; }
.whisker { stroke: var(--text); stroke-width: 1.3; } .stem { stroke: var(--grid); stroke-width: 6; }
.front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.power { fill: none; stroke: var(--text); stroke-width: 1.3; stroke-linejoin: round; }
.idle { stroke: var(--soft); stroke-dasharray: 2 3; stroke-width: 1.5; }
.decode { fill: var(--c0); fill-opacity: 0.16; } .prefill { fill: url(#hatch); }
.hatch { fill: var(--c1); }
"""


def page(report: ProfileReport, compared: Comparison | None = None) -> str:
    """HTML that is well-formed XML too. All that files, machines or users told is escaped."""
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{clean(report.model)}: profile</title>",
            f"<style>{STYLE}</style></head><body>",
            *_body(report, compared),
            "</body></html>",
            "",
        )
    )


def _body(report: ProfileReport, compared: Comparison | None) -> Iterator[str]:
    request, points = report.request, report.points
    where = request.device or report.environment.processor or request.engine
    yield f"<h1>{clean(report.model)}</h1>"
    yield (
        f'<p class="soft">Tokens a second and joules a token on {clean(where)}, engine '
        f"{clean(request.engine)}, {clean(report.environment.date[:10])}</p>"
    )
    if not report.complete:
        yield (
            f'<p class="warn">Unfinished: {len(points) - len(report.from_before)} of '
            f"{len(request.points)} points are measured.</p>"
        )
    if report.from_before:
        told = ", ".join(key.name for key in report.from_before)
        yield f'<p class="warn">Of the run before: {clean(told)}.</p>'
    for names, reason in report.failures.items():
        yield f'<p class="warn">{clean(f"{names}: no figures: {reason}.")}</p>'
    none = [point.reason for point in points if point.reason and point.joules_per_token is None]
    for reason in dict.fromkeys(none) or ([report.energy_reason] if report.energy_reason else []):
        yield f'<p class="warn">No joules: {clean(reason)}.</p>'
    for point in points:
        if point.reason and point.joules_per_token is not None:
            yield f'<p class="warn">{clean(f"{point.key.name}: {point.reason}.")}</p>'
        if point.busy is not None:
            yield f'<p class="warn">{clean(f"{point.key.name}: {point.busy}.")}</p>'
    if not points:
        return
    looks = pareto.Looks(points)
    yield "<h2>Speed and energy</h2>"
    yield pareto.plot(points, looks)
    yield looks.legend()
    yield (
        '<p class="soft">Lines through a mark are 95 % intervals; the dashed line joins the points '
        "that no other beats in both.</p>"
    )
    yield "<h2>Figures</h2>"
    yield from _table(report)
    if compared is not None:
        yield from _changes(points, compared)
    if strips := power_plot.strips(points):
        yield "<h2>Power over time</h2>"
        yield f'<svg width="0" height="0" style="position:absolute">{power_plot.HATCH}</svg>'
        yield power_plot.legend()
        yield from strips
        yield (
            '<p class="soft">The first round of each point: prompt after prompt, read once and '
            "then decoded again and again.</p>"
        )
    yield "<h2>To repeat it</h2>"
    yield from _facts(report)


def _table(report: ProfileReport) -> Iterator[str]:
    heads = (
        *("", "tokens/s", "J/token", "W", "idle W", "&#176;C", "GPU MHz"),
        *("tokens/iter.", "verified", "rounds"),
    )
    yield '<div class="wide"><table><tr>' + "".join(f"<th>{h}</th>" for h in heads) + "</tr>"
    for point in report.points:
        conditions = point.conditions
        cells = (
            point.key.name,
            _estimate(point.tokens_per_s, ".1f"),
            _estimate(point.joules_per_token, ".3g"),
            _number(None if point.watts is None else point.watts.mean, ".3g"),
            _number(point.idle_watts, ".3g"),
            _number(conditions.celsius, ".0f"),
            _clocks(conditions),
            f"{point.tokens_per_iteration:.2f}",
            f"{point.verified_share:.0%}",
            f"{len(point.tokens_per_s.values)}{'' if point.tight else ' (not tight)'}",
        )
        yield "<tr>" + "".join(f"<td>{clean(cell)}</td>" for cell in cells) + "</tr>"
    for failure in report.without_figures:
        yield f"<tr><td>{clean(failure.key.name)}</td>" + "<td>-</td>" * (len(heads) - 1) + "</tr>"
    yield "</table></div>"
    for point in report.points:
        if held := point.conditions.throttled_by:
            told = f"{point.key.name}: throttled by {', '.join(held)}."
            yield f'<p class="warn">{clean(told)}</p>'


def _changes(points: Sequence[ProfilePoint], compared: Comparison) -> Iterator[str]:
    yield "<h2>Since the older profile</h2>"
    yield '<div class="wide"><table><tr><th></th><th>figure</th><th>before</th><th>now</th>'
    yield "<th>change</th></tr>"
    for index, changes in compared.changes.items():
        for change in changes:
            look = ' class="changed"' if change.changed else ""
            told = f"{change.ratio - 1:+.1%}{' changed' if change.changed else ''}"
            yield (
                f"<tr{look}><td>{clean(points[index].key.name)}</td><td>{change.figure}</td>"
                f"<td>{change.old:.4g}</td><td>{change.new:.4g}</td><td>{told}</td></tr>"
            )
    yield "</table></div>"
    yield f'<p class="soft">{clean(RULE[0].upper() + RULE[1:])}.</p>'
    for key in compared.unmatched:
        yield f"<p>Not in the older profile: {clean(key.name)}</p>"
    for line in compared.elsewhere:
        yield f"<p>Different: {clean(line)}</p>"


def _facts(report: ProfileReport) -> Iterator[str]:
    request, here = report.request, report.environment
    totals = dict.fromkeys(point.total_is for point in report.points if point.total_is)
    ratios = [p.counter_over_integrated for p in report.points if p.counter_over_integrated]
    shares = [p.decode_share for p in report.points if p.decode_share]
    dates = [point.date for point in report.points]
    clocks = dict.fromkeys(
        point.conditions.jetson_clocks
        for point in report.points
        if point.conditions.jetson_clocks is not None
    )
    facts = (
        ("command", report.command),
        ("bundle", f"{report.bundle}, SHA-256 of bundle.json {request.bundle}"),
        (
            "prompts",
            f"{report.prompt_file}: {request.prompt_count}, SHA-256 of their token ids "
            f"{request.prompts}",
        ),
        ("replies", f"greedy, so without a seed; up to {counted(request.max_new_tokens, 'token')}"),
        (
            "engine",
            ", ".join(
                [request.engine]
                + ([] if request.threads is None else [counted(request.threads, "thread")])
                + [here.instructions or ""] * (here.instructions is not None)
            ),
        ),
        ("GPU", request.device),
        ("processor", f"{here.processor or 'unknown'}, {here.processors} logical"),
        ("system", here.system),
        ("versions", ", ".join(f"{name} {number}" for name, number in here.versions.items())),
        ("jetson_clocks", ", ".join("on" if each else "off" for each in clocks)),
        (
            "power source",
            None if request.energy is None else f"{request.energy}: {', '.join(totals)}",
        ),
        ("counter over integrated power", ", ".join(f"{ratio:.3f}" for ratio in ratios)),
        (
            "rounds",
            f"{MIN_ROUNDS} to {request.max_rounds}, until half the 95 % interval (Student's t over "
            f"rounds) of tokens/s and J/token is within {request.within:.1%} of the mean; each "
            f"prompt is decoded for {request.min_seconds:g} s at least",
        ),
        (
            "decoding, of the time that joules are of",
            ", ".join(f"{share:.1%}" for share in shares),
        ),
        ("between runs", f"differences below {FLOOR:.0%} are not called changes"),
        (
            "measured",
            f"the first point until {min(dates)}, the last until {max(dates)}; "
            f"{sum(point.seconds for point in report.points):.0f} s in all",
        ),
    )
    yield '<div class="wide"><table class="facts">'
    for name, value in facts:
        if value:
            shown = f"<code>{clean(value)}</code>" if name == "command" else clean(value)
            yield f"<tr><td>{clean(name)}</td><td>{shown}</td></tr>"
    yield "</table></div>"


def _clocks(conditions: Conditions) -> str:
    seen = conditions.gpu_mhz
    if seen is None:
        return "-"
    if round(seen.lowest) == round(seen.highest):
        return f"{seen.mean:.0f}"
    return f"{seen.lowest:.0f} to {seen.highest:.0f}"


def _estimate(found: Estimate | None, form: str) -> str:
    if found is None:
        return "-"
    sure = "" if found.margin is None else f" \u00b1 {found.margin:.1%}"
    return f"{found.mean:{form}}{sure}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
