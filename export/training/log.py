"""The run's log: one CSV, and a picture of it at the end."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from bitmtp_edge.errors import missing_extra

LOG_FILE, PLOT_FILE = "log.csv", "losses.svg"
COLUMNS = (
    "step", "seconds", "tokens", "tokens_per_second", "learning_rate",
    "ntp", "mtp", "distillation", "held_out_ntp", "held_out_mtp", "held_out_prefix",
)  # fmt: skip


class Log:
    """Rows of :data:`COLUMNS`, appended and flushed; what a resumed run will do again is dropped."""

    def __init__(self, folder: Path, from_step: int) -> None:
        self.path = folder / LOG_FILE
        kept: list[dict[str, str]] = []
        if from_step and self.path.is_file():
            with self.path.open(encoding="utf-8", newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= from_step]
        with self.path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(kept)

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
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("matplotlib", "train") from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    with (folder / LOG_FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    def column(name: str) -> tuple[list[float], list[float]]:
        points = [(float(row["tokens"]) / 1e6, float(row[name])) for row in rows if row[name]]
        return [x for x, _ in points], [y for _, y in points]

    figure, (losses, prefix) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
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
    partial = path.with_name(f"{path.name}.partial")
    figure.savefig(partial, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    partial.replace(path)
    return path
