"""The run's log: one CSV, and a picture of it at the end."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from bitmtp_edge.errors import UserError
from bitmtp_edge.files import new_file

LOG_FILE, PLOT_FILE = "log.csv", "losses.svg"
COLUMNS = (
    "step", "seconds", "tokens", "tokens_per_second", "learning_rate",
    "ntp", "mtp", "distillation", "held_out_ntp", "held_out_mtp", "held_out_prefix",
)  # fmt: skip


class Log:
    """Rows of :data:`COLUMNS`, appended and flushed; what a resumed run will do again is dropped.

    seconds: what the kept rows took.
    """

    def __init__(self, folder: Path, from_step: int) -> None:
        self.path = folder / LOG_FILE
        kept = self._rows(from_step) if from_step and self.path.is_file() else []
        self.seconds = float(kept[-1]["seconds"]) if kept else 0.0
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(kept)
        with new_file(self.path) as file:
            file.write(text.getvalue().encode())

    def _rows(self, last: int) -> list[dict[str, str]]:
        """Rows up to the step ``last``, without the half of one that a killed run left."""
        with self.path.open(encoding="utf-8", newline="") as file:
            try:
                whole = [row for row in csv.DictReader(file) if None not in row.values()]
                kept = [row for row in whole if int(row["step"]) <= last]
                sound = all(row.keys() == set(COLUMNS) and float(row["seconds"]) for row in kept)
            except (ValueError, KeyError, csv.Error):
                sound = False
        if not sound:
            raise UserError(f"{self.path} is damaged: delete it, and the run begins a new one")
        return kept

    def add(self, values: Mapping[str, float]) -> None:
        """Appends a row; counts stay whole, the rest has five digits."""
        row = {
            name: value if isinstance(value, int) else f"{value:.5g}"
            for name, value in values.items()
        }
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS, restval="").writerow(row)


def plot_losses(folder: Path) -> Path:
    """Draws both losses, training and held out, and the held-out prefix; returns the picture."""
    from matplotlib.figure import Figure

    with (folder / LOG_FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> tuple[list[float], list[float]]:
        points = [(float(row["tokens"]) / 1e6, float(row[name])) for row in rows if row[name]]
        return [x for x, _ in points], [y for _, y in points]

    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, prefix = figure.subplots(1, 2)
    for name, label, colour, style in (
        ("ntp", "next token", "C0", {"alpha": 0.35}),
        ("mtp", "masks", "C1", {"alpha": 0.35}),
        ("held_out_ntp", "next token, held out", "C0", {"marker": "o", "markersize": 3}),
        ("held_out_mtp", "masks, held out", "C1", {"marker": "o", "markersize": 3}),
    ):
        x, y = column(name)
        if any(y):
            losses.plot(x, y, label=label, color=colour, **style)
    losses.set(xlabel="clean tokens (millions)", ylabel="loss (nats a token)", yscale="log")
    losses.legend()
    x, y = column("held_out_prefix")
    prefix.plot(x, y, color="C2", marker="o", markersize=3)
    prefix.set(
        xlabel="clean tokens (millions)",
        ylabel="right tokens from a block's first",
        title="held-out text",
    )
    path = folder / PLOT_FILE
    with new_file(path) as picture:
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return path
