"""Writes docs/cold_start_budget.md: ``python -m benchmarks.cold_start_budget``.

What a start of a 70B model under tensor parallelism of 8 may take on a p5en node that runs, part by
part. Each part is measured here, published elsewhere, or a projection, and says so. Measures
nothing.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.cold_start_projection import MODEL_BYTES
from benchmarks.machine import REPOSITORY
from benchmarks.result import read_result

RESULTS = REPOSITORY / "benchmarks" / "results"
PROMISE_S = 60.0
START = "start_cold_with_forge"
"""The case of cold_start-start.json whose stages are taken: nothing of the model on the node."""
ROUTER_S = 2.0


class Source(StrEnum):
    MEASURED = "measured here"
    PUBLISHED = "published"
    PROJECTION = "projection"


@dataclass(frozen=True, slots=True)
class Row:
    part: str
    time_s: float
    source: Source
    where: str
    stage: str | None = None
    """Of `engine.start_stages`, where the engine times this part itself."""


@dataclass(frozen=True, slots=True)
class WeightsPath:
    """A way of the weights to the node's memory, and how near its rung came to its medium here."""

    name: str
    case: str
    """Of cold_start-rungs.json; its ``of_limit`` is the share."""
    bytes_per_s: float
    medium: str

    def time_s(self, share_of_medium: float) -> float:
        return MODEL_BYTES / self.bytes_per_s / min(1.0, share_of_medium)


PATHS = (
    WeightsPath("S3", "made_4gb_store_behind_link", 25e9, "one adapter of 200 Gbit/s"),
    WeightsPath("NVMe", "made_4gb_disk", 18e9, "8 disks at their published 4 KiB reads"),
    WeightsPath("peer", "made_4gb_peer", 400e9, "EFA of 3,200 Gbit/s"),
    WeightsPath("staged", "made_4gb_staged_mapped", 440e9, "8 links of PCIe 5, 55 GB/s assumed"),
)
"""The media as AWS publishes them of p5en.48xlarge, but for the last."""


def rows(folder: Path, path: WeightsPath) -> list[Row]:
    """In the order of a start. Raises `ResultError`, and KeyError for a case that isn't there."""
    share = _shares(folder)[path.case]
    copied = _by_name("staged").time_s(_shares(folder)[_by_name("staged").case])
    bring = Row(
        f"weights from {path.name} to host memory",
        path.time_s(share),
        Source.PROJECTION,
        f"140 GB over {path.medium}, at {min(1.0, share):.0%} of it as in cold_start-rungs.json: "
        f"{path.case}",
    )
    return [
        _measured(folder, "process, forked from the forge", "process"),
        _measured(folder, "imports, done by the forge", "imports"),
        _measured(folder, "checkpoint's description", "checkpoint"),
        _measured(folder, "native library, compiled before", "library"),
        *(_asked_of_the_store(folder) if path.name == "S3" else []),
        *([] if path.name == "staged" else [bring]),
        Row(
            "copies to the devices, 17.5 GB each", copied, Source.PROJECTION,
            "8 links of PCIe 5 side by side, at the share of made_4gb_staged_mapped",
        ),
        Row(
            "devices find each other (NCCL)", 4.0, Source.PROJECTION,
            "the 60 s peer check of vllm#19824 is kept as a file of the node; what remains of the "
            "join is an estimate", "join",
        ),
        Row(
            "compile cache, read", 15.0, Source.PROJECTION,
            "estimated, the long end of 8 to 15 s, of a cache beside the weights; vllm#19824 takes "
            "85 s without one",
        ),
        Row(
            "graphs, a trimmed list of sizes", 20.0, Source.PROJECTION,
            "vllm#19824 takes 60 s for all its sizes; a third of them is assumed",
        ),
        _measured(folder, "KV pool", "kv_pool"),
        _measured(folder, "workspace", "workspace"),
        _measured(folder, "warm-up, of a 135M model on a CPU", "warm_up"),
        _measured(folder, "node's cache joined", "node_cache"),
        _measured(folder, "model card", "model_card"),
        Row(
            "router sees it", ROUTER_S, Source.PROJECTION,
            "the controller's and the gateway's next round, a second each",
        ),
    ]  # fmt: skip


def _asked_of_the_store(folder: Path) -> list[Row]:
    return [
        _measured(folder, "the store lists the model", "listing"),
        _measured(folder, "the store gives its small files", "description"),
        _measured(folder, "checked, sealed and linked", "seal and link"),
    ]


def total_s(budget: Sequence[Row]) -> float:
    """One part after the other: nothing is taken to overlap."""
    return sum(row.time_s for row in budget)


def render(folder: Path = RESULTS) -> str:
    """The whole page."""
    budgets = {path.name: rows(folder, path) for path in PATHS}
    lines = [_INTRODUCTION, *_table(budgets["S3"]), "", "## By where the weights come from", ""]
    lines += ["| weights from | start |", "| --- | ---: |"]
    lines += [f"| {name} | {total_s(budget):.1f} s |" for name, budget in budgets.items()]
    return "\n".join(lines) + "\n" + _LIMITS


def _table(budget: Sequence[Row]) -> list[str]:
    lines = ["| part | seconds | source | where from |", "| --- | ---: | --- | --- |"]
    lines += [f"| {row.part} | {row.time_s:.2f} | {row.source} | {row.where} |" for row in budget]
    return [*lines, f"| **sum** | **{total_s(budget):.1f}** | of {PROMISE_S:.0f} s | |"]


def _measured(folder: Path, part: str, stage: str) -> Row:
    case = f"{START}_stage_{stage}"
    results = read_result(folder / "cold_start-start.json").results
    values = {result.case: result.value for result in results}
    where = f"cold_start-start.json: {case}"
    return Row(part, values[case], Source.MEASURED, where, stage)


def _shares(folder: Path) -> dict[str, float]:
    results = read_result(folder / "cold_start-rungs.json").results
    return {result.case: result.of_limit for result in results if result.of_limit is not None}


def _by_name(name: str) -> WeightsPath:
    return next(path for path in PATHS if path.name == name)


_INTRODUCTION = f"""\
# What a cold start may take: 70B, tensor parallelism of 8, p5en

The promise is a replica that answers {PROMISE_S:.0f} s after it was asked for, on a node that runs
and has nothing of the model. No accelerator was at hand, so this is a budget and not a measurement:
each part says where its seconds come from. `make docs` writes this page from
`benchmarks/cold_start_budget.py` and the result files.

Nothing is taken to overlap, though weights arrive while processes start.
"""

_LIMITS = """
## What it doesn't hold

- A node that has to boot first: that is tens of seconds to minutes, and EC2 may have none to give.
  Keep one node of a pool running (`min_nodes`), or capacity reserved.
- The measured parts were measured with a small model on two CPU cores. Process, imports, checkpoint
  and card don't depend on the model's size; KV pool and warm-up do on a device's driver.
- The share of a medium that a rung reached here was reached on a medium tens to hundreds of times
  slower. Two cores bring 0.73 GB/s from a store (cold_start-rungs.json: made_4gb_store), so 25 GB/s
  take about 70 such cores of a p5en's 192 virtual ones, if more cores bring as much more.
- Without the files that are kept beside the weights, others report 215 s for the engine alone
  (vllm#19824: 60 s peer check, 10 s weights, 85 s compile, 60 s graphs).
"""


if __name__ == "__main__":
    sys.stdout.write(render())
