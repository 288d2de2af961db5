"""Draws simulations side by side: TTFT, TPOT, hits, imbalance and cost, as PNG or as an HTML page
that needs no network.

Matplotlib is the extra ``plots``, and is imported only when something is drawn.
"""

import html
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from simulator.errors import SimulationError
from simulator.summary import Run, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (13.0, 7.5)
_DPI = 110
_BAR_COLOR = "tab:blue"
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 2rem auto; max-width: 80rem }}
table {{ border-collapse: collapse; font-size: 0.9rem }}
th, td {{ padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ccc }}
th:first-child, td:first-child {{ text-align: left }}
svg {{ width: 100%; height: auto }}
</style>
<h1>{title}</h1>
{notes}
{table}
{figure}
</html>
"""


class PlotsUnavailable(SimulationError):
    """The drawing library is not installed."""


def check_plots() -> None:
    """Raises `PlotsUnavailable`; call before what takes long."""
    if find_spec("matplotlib") is None:
        raise PlotsUnavailable(
            "plots need matplotlib: pip install 'headwater[plots]', or leave out --png and --html"
        )


def draw_png(runs: Sequence[Run], summaries: Sequence[Summary]) -> bytes:
    """The content of the file."""
    return render_png(_draw(runs, summaries))


def draw_html(
    title: str,
    notes: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    runs: Sequence[Run],
    summaries: Sequence[Summary],
) -> str:
    """A page with the table and the plots."""
    return render_page(title, notes, rows, _draw(runs, summaries))


def render_png(figure: "Figure") -> bytes:
    """The content of the file."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
    return png.getvalue()


def render_page(
    title: str, notes: Sequence[str], rows: Sequence[Mapping[str, str]], figure: "Figure"
) -> str:
    """An HTML page with a table and a figure."""
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    text = svg.getvalue()
    return _PAGE.format(
        title=html.escape(title),
        notes="\n".join(f"<p>{html.escape(note)}</p>" for note in notes),
        table=_html_table(rows),
        figure=text[text.index("<svg") :],  # what stands before refers to a DTD elsewhere
    )


def _html_table(rows: Sequence[Mapping[str, str]]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _draw(runs: Sequence[Run], summaries: Sequence[Summary]) -> "Figure":
    # No pyplot: it keeps every figure, and asks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots(2, 3)
    labels = [summary.label for summary in summaries]
    first_tokens = {run.label: [r.ttft_s for r in run.outcome.requests] for run in runs}
    _draw_shares(axes[0, 0], "TTFT (s)", first_tokens)
    later_tokens = {
        run.label: [1000 * r.tpot_s for r in run.outcome.requests if r.tpot_s is not None]
        for run in runs
    }
    _draw_shares(axes[0, 1], "TPOT (ms)", later_tokens)
    _draw_bars(axes[0, 2], "TTFT p99 (s)", labels, [s.ttft_s.p99 for s in summaries])
    _draw_bars(axes[1, 0], "prompt tokens hit (%)", labels, [100 * s.hit_rate for s in summaries])
    imbalances = [summary.request_imbalance for summary in summaries]
    _draw_bars(axes[1, 1], "requests, busiest replica over mean", labels, imbalances)
    costs = [summary.cost_per_million_tokens for summary in summaries]
    if any(costs):
        _draw_bars(axes[1, 2], "US dollars per million answer tokens", labels, costs)
    else:
        rates = [summary.answer_tokens_per_s for summary in summaries]
        _draw_bars(axes[1, 2], "answer tokens/s (no price given)", labels, rates)
    return figure


def _draw_shares(axes: "Axes", title: str, values: Mapping[str, Sequence[float]]) -> None:
    """Share of the requests at or below each value."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_title(title)
    axes.set_ylabel("share of requests")
    drawn = {label: sorted(times) for label, times in values.items() if times}
    for label, times in drawn.items():
        shares = [(index + 1) / len(times) for index in range(len(times))]
        axes.step(times, shares, where="post", label=label)
    if not drawn:
        axes.text(0.5, 0.5, "not simulated", ha="center", va="center")
        return
    if all(times[0] > 0 for times in drawn.values()):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")


def _draw_bars(axes: "Axes", title: str, labels: Sequence[str], values: Sequence[float]) -> None:
    axes.set_title(title)
    bars = axes.barh(range(len(labels)), values, color=_BAR_COLOR)
    axes.bar_label(bars, fmt="%.3g", padding=2, fontsize="small")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.15)
