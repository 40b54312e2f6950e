"""Tell what works on this machine, and why the rest does not."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ..doctor import examine
from ..errors import one_line


@click.command(name="doctor", help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(as_json: bool) -> None:
    findings = list(examine())
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
        return
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        click.echo(f"{finding.status:8}  {finding.subject:{width}}  {one_line(finding.detail)}")
