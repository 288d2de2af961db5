"""Step times interpolated from published tables of measured latencies, such as those of Splitwise
and SageServe: prompts by their number of tokens, decodes by their number. Must not know where such
tables come from.

The tables hold prompts by themselves and decodes by themselves. A step of both takes the prompts'
time and, beside it, what the decodes take beyond the smallest batch: the weights are read once.
"""

import csv
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engine.step_time import StepWork
from simulator.errors import TraceError
from simulator.performance import NO_TRANSFERS, Bandwidths

_TOTAL_RATIO = 1.5
"""A decode time so many times shorter than what the whole answer took is that of one token."""

_LEAST_RATIO = 0.9
"""Of the time of a larger step to that of a smaller one: noise explains no less."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Linear between its points, and beyond the last two as between them."""

    sizes: tuple[float, ...]
    times_s: tuple[float, ...]

    def at(self, size: float) -> float:
        if len(self.sizes) == 1:
            return self.times_s[0]
        # Below the first point a step is no shorter: it is bound by what every step does.
        if size <= self.sizes[0]:
            return self.times_s[0]
        right = min(bisect_right(self.sizes, size), len(self.sizes) - 1)
        begin, end = self.sizes[right - 1], self.sizes[right]
        begin_s, end_s = self.times_s[right - 1], self.times_s[right]
        slope = (end_s - begin_s) / (end - begin)
        return begin_s + max(0.0, slope) * (size - begin)


@dataclass(frozen=True, slots=True)
class TableModel:
    """A ``PerformanceModel`` of one model on one kind of hardware."""

    prompts: Curve
    """By prompt tokens of a step."""
    decodes: Curve
    """By sequences."""
    bandwidths: Bandwidths = NO_TRANSFERS

    def step_time_s(self, work: StepWork) -> float:
        if work.num_prefill_tokens == 0:
            return self.decodes.at(work.num_decodes)
        prompts_s = self.prompts.at(work.num_prefill_tokens)
        if work.num_decodes == 0:
            return prompts_s
        return prompts_s + self.decodes.at(work.num_decodes) - self.decodes.times_s[0]


def read_table(
    path: Path,
    *,
    model: str,
    hardware: str,
    tensor_parallel_size: int,
    unit_s: float = 0.001,
    bandwidths: Bandwidths = NO_TRANSFERS,
) -> TableModel:
    """A CSV with the columns model, hardware, tensor_parallel, prompt_size, batch_size, token_size,
    prompt_time, token_time and e2e_time, in units of ``unit_s``.

    Medians of the rows of that model. Raises ``TraceError``.
    """
    prompts: dict[float, list[float]] = defaultdict(list)
    decodes: dict[float, list[float]] = defaultdict(list)
    known: set[tuple[str, str, str]] = set()
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                try:
                    kind = (row["model"], row["hardware"], row["tensor_parallel"])
                    known.add(kind)
                    if kind == (model, hardware, str(tensor_parallel_size)):
                        _add(row, unit_s, prompts, decodes)
                except (KeyError, TypeError, ValueError) as error:
                    raise TraceError(
                        f"{path}, row {number}: {error!r}; it must have the columns of a "
                        "performance table"
                    ) from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is no table that can be read: {error}") from error
    if not prompts:
        kinds = ", ".join(f"{m} on {h} × {n}" for m, h, n in sorted(known))
        raise TraceError(
            f"{path} has no rows of {model} on {hardware} × {tensor_parallel_size}; it has: {kinds}"
        )
    return TableModel(_curve(prompts), _curve(decodes), bandwidths)


def _add(
    row: dict[str, str],
    unit_s: float,
    prompts: dict[float, list[float]],
    decodes: dict[float, list[float]],
) -> None:
    batch, prompt, answer = (int(row[n]) for n in ("batch_size", "prompt_size", "token_size"))
    prompt_s, token_s, whole_s = (
        float(row[n]) * unit_s for n in ("prompt_time", "token_time", "e2e_time")
    )
    if min(batch, prompt, answer) < 1 or min(prompt_s, token_s) <= 0:
        raise ValueError("sizes and times must be above 0")
    if answer > 1 and whole_s - prompt_s < _TOTAL_RATIO * token_s:
        token_s /= answer  # some tables have the time of all tokens there
    prompts[prompt * batch].append(prompt_s)
    decodes[batch].append(token_s)


def _curve(times: dict[float, list[float]]) -> Curve:
    """Medians. Where more is said to take much less time than less does, the device refused it."""
    sizes: list[float] = []
    times_s: list[float] = []
    for size in sorted(times):
        time_s, longest_s = median(times[size]), max(times_s, default=0.0)
        if time_s >= _LEAST_RATIO * longest_s:
            sizes.append(size)
            times_s.append(max(time_s, longest_s))
    return Curve(tuple(sizes), tuple(times_s))
