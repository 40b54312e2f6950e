"""What ``doctor`` tells: a subject, how it stands, and the detail or the fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "missing", "untested"]


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it stands, the detail or the fix."""

    subject: str
    status: Status
    detail: str
