"""The picture of ``eval``: tokens an iteration and scores, policy by policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import missing_extra
from ..files import new_file
from .eval_tables import label

if TYPE_CHECKING:
    from ..evaluation_report import EvalReport


def import_pyplot() -> Any:
    """matplotlib.pyplot, drawing to files alone. Raises UserError naming the extra."""
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("matplotlib", "train") from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot


def draw(report: EvalReport, path: Path) -> None:
    """Writes an SVG of two panels: a bar a policy for the average, a dot a task over it."""
    pyplot = import_pyplot()
    labels = [label(figures) for figures in report.policies]
    places = range(len(labels))
    figure, axes = pyplot.subplots(
        1, 2, figsize=(11, 1.8 + 0.4 * len(labels)), layout="constrained", sharey=True
    )
    for panel, name, title in zip(
        axes,
        ("tokens_per_iteration", "score"),
        ("tokens an iteration", "right answers (%)"),
        strict=True,
    ):
        averages = [getattr(figures.average, name, None) for figures in report.policies]
        if None not in averages:
            panel.barh(places, averages, color="0.85", label="average")
            for place, average in zip(places, averages, strict=True):
                panel.text(0, place, f" {average:.1f}", va="center")
        for index, task in enumerate(task for task in report.tasks if task.done):
            values = [getattr(figures.tasks[index], name) for figures in report.policies]
            if None not in values:
                told = f"{task.task}{' (apart)' * task.apart}"
                panel.scatter(values, places, s=18, label=told, color=f"C{index}", zorder=3)
        panel.set(title=title, xlim=(0, None))
        panel.set_yticks(places, labels)
    axes[0].invert_yaxis()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False)
    with new_file(path) as picture:
        figure.savefig(picture, format="svg", metadata={"Date": None})
    pyplot.close(figure)
