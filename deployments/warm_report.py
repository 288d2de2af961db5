"""What `headwater models warm` shows: a progress bar per node, a line about each, and tables of
what took how long.

Must not know how weights are brought.
"""

from collections.abc import Iterator, Sequence
from typing import Never, Self

from tqdm import tqdm

from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage, WeightsState
from deployments.fitting_nodes import FittingNode
from deployments.weight_warming import Warmed


class WarmBars:
    """A progress bar per node, on standard error if that is a terminal. A context manager."""

    def __init__(self) -> None:
        self._bars: dict[tuple[str, str], tqdm[Never]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for bar in self._bars.values():
            bar.close()

    @property
    def positions(self) -> dict[tuple[str, str], float]:
        """Bytes, by model and node."""
        return {key: bar.n for key, bar in self._bars.items()}

    def show(self, node: FittingNode, state: WeightsState) -> None:
        """How far a node is."""
        key = (state.model, node.node_id)
        bar = self._bars.get(key)
        if bar is None:
            bar = self._bars[key] = tqdm(
                desc=f"{state.model} on {node}",
                unit="B",
                unit_scale=True,
                disable=None,
                position=len(self._bars),
            )
        bar.total = state.num_bytes or None
        is_there = state.rung >= state.wanted > Rung.COLD
        bar.n = state.num_bytes if is_there else state.num_done_bytes
        bar.refresh()


def describe(warmed: Warmed) -> str:
    """One line."""
    state = warmed.state
    if state is None or warmed.failure is not None:
        return f"{warmed.node}: {warmed.failure}"
    if state.rung is Rung.COLD:
        return f"{warmed.node}: {state.model} is gone"
    where = {Rung.ON_DISK: "on disk"}.get(state.rung, "in memory")
    size = f"{state.num_bytes / 1e6:,.0f} MB"
    origin = f", from {_origin(state)}" if state.origin else ""
    return f"{warmed.node}: {state.model} is {where} ({size}{origin}) after {warmed.time_s:.1f} s"


def _origin(state: WeightsState) -> str:
    return {"peer": "another node", "source": "its source"}.get(state.origin, f"its {state.origin}")


def explain(warmed: Warmed) -> Iterator[str]:
    """Lines: the stages of the last promotion on a node, and of the last replica's start there."""
    state = warmed.state
    if state is None:
        return
    origin = f", from {_origin(state)}" if state.origin else ""
    for title, stages in (
        (f"last promotion{origin}", state.stages),
        ("last start of a replica", state.start_stages),
    ):
        yield f"{warmed.node}: {title}"
        yield from _table(stages) if stages else ["  none yet"]


def _table(stages: Sequence[Stage]) -> Iterator[str]:
    width = max(len("in all"), *(len(stage.name) for stage in stages))
    yield f"  {'stage':<{width}}  {'s':>8}  {'MB':>10}  {'GB/s':>7}"
    for stage in stages:
        yield _row(stage, width)
    yield _row(Stage("in all", sum(stage.time_s for stage in stages)), width)


def _row(stage: Stage, width: int) -> str:
    line = f"  {stage.name:<{width}}  {stage.time_s:>8.2f}"
    if stage.num_bytes:
        line += f"  {stage.num_bytes / 1e6:>10,.1f}"
        if stage.time_s > 0:
            line += f"  {stage.num_bytes / 1e9 / stage.time_s:>7.2f}"
    return line
