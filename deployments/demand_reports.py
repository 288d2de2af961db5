"""Turns what the gateways report into what the planner observes.

Counts are compared with those of the same gateway process before, so that a report that was lost
loses nothing. A gateway that doesn't answer makes demand unknown; so does one of which nothing is
known yet, since its counts go back to its start. Must not know how gateways are asked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from app.autoscaling_messages import (
    NUM_LENGTH_BUCKETS,
    DemandReport,
    EngineSeen,
    ModelDemand,
)
from autoscaler.config import AutoscalerConfig, ModelScalingConfig
from autoscaler.observation import (
    Demand,
    FleetObservation,
    ModelObservation,
    ReplicaObservation,
    ServeObservation,
)
from deployments.length_window import LengthWindow, num_above

SILENT_S = 30.0
"""An engine that no gateway sees any more is believed to be there for so long, if Serve agrees."""
_TAIL = 0.95
_SINCE_START = (
    "num_arrived",
    "num_refused",
    "num_prompt_tokens",
    "num_uncached_tokens",
    "num_begun",
    "num_generated_tokens",
    "num_ended",
)
_HISTOGRAMS = ("ttft_counts", "tpot_counts", "prompt_counts", "answer_counts")


class _Seen(NamedTuple):
    engine: EngineSeen
    seen_s: float


class _Pair(NamedTuple):
    """Two reports of one gateway."""

    before: DemandReport
    after: DemandReport

    @property
    def period_s(self) -> float:
        return self.after.made_s - self.before.made_s


@dataclass(slots=True)
class _ModelMemory:
    prompt_lens: LengthWindow = field(default_factory=lambda: LengthWindow(NUM_LENGTH_BUCKETS))
    answer_lens: LengthWindow = field(default_factory=lambda: LengthWindow(NUM_LENGTH_BUCKETS))
    engines: dict[str, _Seen] = field(default_factory=dict)


class DemandReports:
    """Remembers each gateway's last report and each engine's last view."""

    def __init__(self) -> None:
        self._last: dict[str, DemandReport] = {}
        self._models: dict[str, _ModelMemory] = {}

    def observe(
        self,
        answers: Sequence[DemandReport | None],
        serve: Mapping[str, ServeObservation],
        config: AutoscalerConfig,
        *,
        now_s: float,
        local_s: float,
    ) -> FleetObservation:
        """The fleet now. ``answers``: one per gateway that Serve knows, None of one that didn't
        answer; ``serve``: what Serve said lately.
        """
        reports = [answer for answer in answers if answer is not None]
        is_whole = bool(reports) and len(reports) == len(answers)
        pairs = self._advance(reports) if is_whole else None
        scaling = {model.name: model for model in config.models}
        names = dict.fromkeys(scaling)
        names.update(dict.fromkeys(model.model for report in reports for model in report.models))
        self._models = {name: self._models.get(name) or _ModelMemory() for name in names}
        models = tuple(
            ModelObservation(
                name,
                self._demand(name, scaling.get(name), pairs, now_s),
                self._replicas(name, reports, serve.get(name), now_s),
                serve.get(name),
            )
            for name in names
        )
        return FleetObservation(now_s, local_s, models)

    def _advance(self, reports: Sequence[DemandReport]) -> list[_Pair] | None:
        """Each gateway's report with the one before; None if one of them has none yet.

        What was known before is replaced only where the comparison succeeds or can't, so that the
        next one covers all the time since.
        """
        pairs = []
        is_known = True
        for report in reports:
            before = self._last.get(report.gateway_id)
            if before is None or not _grows(before, report):
                is_known = False
                self._last[report.gateway_id] = report
            else:
                pairs.append(_Pair(before, report))
        if not is_known or any(pair.period_s <= 0 for pair in pairs):
            return None
        self._last = {report.gateway_id: report for report in reports}
        return pairs

    def _demand(
        self,
        name: str,
        scaling: ModelScalingConfig | None,
        pairs: Sequence[_Pair] | None,
        now_s: float,
    ) -> Demand | None:
        if pairs is None or not any(_find(pair.after, name) for pair in pairs):
            return None
        period_s = max(pair.period_s for pair in pairs)
        sums = _ModelSums()
        for pair in pairs:
            after = _find(pair.after, name)
            if after is not None:
                sums.add(_find(pair.before, name), after, period_s / pair.period_s)
        memory = self._models[name]
        memory.prompt_lens.add(sums.histograms["prompt_counts"], now_s)
        memory.answer_lens.add(sums.histograms["answer_counts"], now_s)
        ttft_ms = 1000 * scaling.ttft_target_s if scaling else float("inf")
        tpot_ms = 1000 * scaling.tpot_target_s if scaling else float("inf")
        return Demand(
            period_s=period_s,
            **sums.counts,
            num_waiting=sums.num_waiting,
            num_waiting_tokens=sums.num_waiting_tokens,
            oldest_wait_s=sums.oldest_wait_s,
            num_ttft_late=num_above(sums.histograms["ttft_counts"], ttft_ms),
            num_tpot_late=num_above(sums.histograms["tpot_counts"], tpot_ms),
            prompt_len_p95=memory.prompt_lens.percentile(_TAIL),
            answer_len_p95=memory.answer_lens.percentile(_TAIL),
        )

    def _replicas(
        self,
        name: str,
        reports: Sequence[DemandReport],
        serve: ServeObservation | None,
        now_s: float,
    ) -> tuple[ReplicaObservation, ...]:
        demands = (_find(report, name) for report in reports)
        views = _merged(engine for demand in demands if demand for engine in demand.engines)
        memory = self._models[name].engines
        memory.update({engine_id: _Seen(view, now_s) for engine_id, view in views.items()})
        num_seen = sum(not view.is_draining for view in views.values())
        is_complete = serve is not None and num_seen >= serve.num_running
        for engine_id, seen in list(memory.items()):
            if engine_id in views:
                continue
            if is_complete or seen.engine.is_draining or now_s - seen.seen_s > SILENT_S:
                del memory[engine_id]
        return tuple(
            _replica(seen.engine, is_silent=engine_id not in views)
            for engine_id, seen in sorted(memory.items())
        )


class _ModelSums:
    """Of one model over all gateways."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_SINCE_START, 0.0)
        self.histograms: dict[str, list[float]] = {name: [] for name in _HISTOGRAMS}
        self.num_waiting = 0.0
        self.num_waiting_tokens = 0.0
        self.oldest_wait_s = 0.0

    def add(self, before: ModelDemand | None, after: ModelDemand, factor: float) -> None:
        """``before`` is None if the gateway offered the model later; ``factor`` turns its period
        into the common one.
        """
        for name in _SINCE_START:
            first = 0 if before is None else getattr(before, name)
            self.counts[name] += factor * (getattr(after, name) - first)
        for name in _HISTOGRAMS:
            last = getattr(after, name)
            firsts = [0] * len(last) if before is None else getattr(before, name)
            sums = self.histograms[name] or [0.0] * len(last)
            self.histograms[name] = [
                total + factor * (count - first)
                for total, count, first in zip(sums, last, firsts, strict=True)
            ]
        self.num_waiting += after.num_waiting
        self.num_waiting_tokens += after.num_waiting_tokens
        self.oldest_wait_s = max(self.oldest_wait_s, after.oldest_wait_s)


def _find(report: DemandReport, name: str) -> ModelDemand | None:
    return next((model for model in report.models if model.model == name), None)


def _grows(before: DemandReport, after: DemandReport) -> bool:
    """Whether counts can be compared: a gateway that forgot a model meanwhile starts it again."""
    for model in after.models:
        first = _find(before, model.model)
        if first is not None and any(
            getattr(model, name) < getattr(first, name) for name in _SINCE_START
        ):
            return False
    return True


def _merged(views: Iterable[EngineSeen]) -> dict[str, EngineSeen]:
    """Newest view of each engine: what it has generated and admitted only grows."""
    newest: dict[str, EngineSeen] = {}
    unseeded: set[str] = set()
    for view in views:
        other = newest.get(view.engine_id)
        if other is None or _progress(view) >= _progress(other):
            newest[view.engine_id] = view
        if not view.is_seeded:
            unseeded.add(view.engine_id)
    return {
        # It counts when all gateways send to it.
        engine_id: msgspec.structs.replace(view, is_seeded=engine_id not in unseeded)
        for engine_id, view in newest.items()
    }


def _progress(view: EngineSeen) -> tuple[int, int]:
    return view.load.num_generated_tokens, view.load.num_prompt_tokens


def _replica(engine: EngineSeen, *, is_silent: bool) -> ReplicaObservation:
    return ReplicaObservation(
        engine.engine_id,
        engine.rung,
        node_id=engine.node_id,
        is_moving=engine.is_moving,
        is_draining=engine.is_draining,
        is_seeded=engine.is_seeded,
        load=None if is_silent else engine.load,
        wake_s=engine.wake_s,
        sleep_s=engine.sleep_s,
        max_num_seqs=engine.max_num_seqs,
        started_from=engine.started_from,
    )
