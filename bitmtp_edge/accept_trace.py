"""Traces of what came of drafts, one iteration a line: what ``bench --accept-trace`` dictates."""

from __future__ import annotations

import json
from pathlib import Path

from .decode.forced import ForcedOutcomes, Outcome
from .decode.policies import ConfidenceOnly, Policy
from .errors import UserError

_EXPECTED = (
    "expected the confident drafts h, the accepted ones a and whether a verify step decides: "
    '"3 5 1" or {"h": 3, "a": 5, "verified": true}'
)
_FLAGS = {"0": False, "1": True, "false": False, "true": True}


def read_accept_trace(path: str | Path) -> tuple[Outcome, ...]:
    """Outcomes of a file: numbers or a JSON object a line; blank lines are skipped.

    Raises UserError, with the line, for a file that is unreadable, empty or malformed, for lengths
    below 0, and for an iteration that would commit nothing.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start})") from None
    outcomes = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        outcome = _outcome(line.strip())
        if outcome is None:
            raise UserError(f"{source}, line {number}: {_EXPECTED}")
        if not outcome.verified and outcome.confident < 1:
            raise UserError(
                f"{source}, line {number}: an iteration that nothing verifies commits its h "
                "confident drafts: expected 1 or more"
            )
        outcomes.append(outcome)
    if not outcomes:
        raise UserError(f"{source} holds no iterations: {_EXPECTED}")
    return tuple(outcomes)


def dictated(policy: Policy, outcomes: tuple[Outcome, ...], source: str | Path) -> Policy:
    """``policy`` with the outcomes of ``source``; one without drafts as it is.

    Raises UserError for an outcome that ``policy`` never has: more drafts than it makes, or a
    verify step where it takes none, or none where it takes one.
    """
    most = policy.max_drafts
    if not most:
        return policy
    for number, (confident, accepted, verified) in enumerate(outcomes, 1):
        where = f"{source}, iteration {number}"
        if max(confident, accepted) > most:
            name, count = ("h", confident) if confident > most else ("a", accepted)
            raise UserError(
                f"{where}: {name} is {count}, and policy {policy.name} makes {most} drafts an "
                f"iteration: expected 0 to {most}"
            )
        never = type(policy) is ConfidenceOnly
        if (never and verified) or (policy.lossless and not verified):
            does = "never verifies" if never else "always verifies"
            raise UserError(
                f"{where}: verified is {str(verified).lower()}, and policy {policy.name} {does}: "
                "change the trace, or give it to --policy hybrid, which does both"
            )
    return ForcedOutcomes(policy, outcomes, str(source))


def _outcome(line: str) -> Outcome | None:
    """None for a line that is none."""
    if line.startswith("{"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if set(value) != {"h", "a", "verified"}:
            return None
        confident, accepted, verified = value["h"], value["a"], value["verified"]
    else:
        cells = line.split()
        if len(cells) != 3 or not (cells[0].isdecimal() and cells[1].isdecimal()):
            return None
        try:
            confident, accepted = int(cells[0]), int(cells[1])
        except ValueError:  # a number without end
            return None
        verified = _FLAGS.get(cells[2].lower())
    if type(confident) is not int or type(accepted) is not int or type(verified) is not bool:
        return None
    return Outcome(confident, accepted, verified) if min(confident, accepted) >= 0 else None
