"""How fast each replica computes and loads, learned from what engines report. Must not know
requests or clocks.

An engine fits its own steps (``engine.step_time``) and its load view says so: nobody else sees
them one by one. What its tiers and the network give is fitted here, to the transfers that it
reports. What a replica has not shown yet is taken from the others, so that a new one is neither
avoided nor flooded. A medium that nobody has shown is believed to give prefixes a few times as fast
as they are computed, whatever the model: only what is tried is measured, and a node that finds it
slower computes.
"""

from collections.abc import Iterable
from statistics import fmean

from app.routing.candidate import NO_RATES, ReplicaRates, SourceKind
from app.routing.transfer_rate import TransferRate
from engine.messages import LoadView

_MEDIA = (SourceKind.HOST, SourceKind.DISK, SourceKind.PEER)
_PRIOR_TIMES_COMPUTED = (8.0, 4.0, 4.0)
"""How much faster than computing each is until one is measured: the least that tiers are built for.
"""
_UNKNOWN_PREFILL_TOKENS_PER_S = 1000.0
_NO_TRANSFERS = (0.0, 0.0, 0.0)


class RateBook:
    """Engine id to what was learned of it."""

    def __init__(self) -> None:
        self._own: dict[str, ReplicaRates] = {}
        """0 is unknown."""
        self._transfers: dict[tuple[str, SourceKind], TransferRate] = {}
        self._usual: ReplicaRates | None = None
        """Means of what is known; None if they have to be taken anew."""
        self._filled: dict[str, ReplicaRates] = {}
        """What ``rates`` said since then."""

    def __len__(self) -> int:
        return len(self._own)

    def rates(self, engine_id: str, *, has_tiers: bool = False) -> ReplicaRates:
        """What is unknown of it is what the others have on average; of computing 0 if nobody knows.
        Without tiers it loads from nowhere.
        """
        if self._usual is None:
            self._usual = _means(self._own.values())
            self._filled.clear()
        filled = self._filled.get(engine_id)
        if filled is None:
            own = self._own.get(engine_id, NO_RATES)
            filled = _filled(own, self._usual, has_tiers=has_tiers)
            self._filled[engine_id] = filled
        return filled

    def see_load(self, engine_id: str, load: LoadView) -> None:
        """Its newest load view. One that fits no steps leaves known what earlier ones said."""
        own = self._own.setdefault(engine_id, NO_RATES)
        if load.prefill_token_s <= 0 or load.prefill_token_s == own.prefill_token_s:
            return
        fitted = (load.prefill_base_s, load.prefill_token_s, load.prefill_attended_s)
        self._set(engine_id, ReplicaRates(*fitted, *_transfer_rates(own)))

    def record_transfer(
        self, engine_id: str, kind: SourceKind, num_tokens: int, time_s: float
    ) -> None:
        """Its engine loaded a prefix of ``num_tokens`` from ``kind`` in ``time_s``."""
        assert kind in _MEDIA, f"{kind} is no transfer"
        fit = self._transfers.setdefault((engine_id, kind), TransferRate())
        fit.record(num_tokens, time_s)
        own = self._own.setdefault(engine_id, NO_RATES)
        speeds = dict(zip(_MEDIA, _transfer_rates(own), strict=True))
        speeds[kind] = fit.tokens_per_s
        fitted = (own.prefill_base_s, own.prefill_token_s, own.prefill_attended_s)
        self._set(engine_id, ReplicaRates(*fitted, *speeds.values()))

    def forget(self, engine_id: str) -> None:
        """It left the fleet."""
        self._own.pop(engine_id, None)
        for kind in _MEDIA:
            self._transfers.pop((engine_id, kind), None)
        self._usual = None

    def _set(self, engine_id: str, rates: ReplicaRates) -> None:
        self._own[engine_id] = rates
        self._usual = None


def _transfer_rates(rates: ReplicaRates) -> tuple[float, float, float]:
    return rates.host_tokens_per_s, rates.disk_tokens_per_s, rates.peer_tokens_per_s


def _filled(own: ReplicaRates, usual: ReplicaRates, *, has_tiers: bool) -> ReplicaRates:
    prefill = own if own.prefill_token_s else usual
    token_s = prefill.prefill_token_s
    fitted = (prefill.prefill_base_s, token_s, prefill.prefill_attended_s)
    if not has_tiers:
        return ReplicaRates(*fitted, *_NO_TRANSFERS)
    computed_per_s = 1 / token_s if token_s else _UNKNOWN_PREFILL_TOKENS_PER_S
    known = zip(_transfer_rates(own), _transfer_rates(usual), _PRIOR_TIMES_COMPUTED, strict=True)
    return ReplicaRates(*fitted, *(a or b or times * computed_per_s for a, b, times in known))


def _means(known: Iterable[ReplicaRates]) -> ReplicaRates:
    known = list(known)
    fitted = [rates for rates in known if rates.prefill_token_s]
    prefill = (
        _mean(rates.prefill_base_s for rates in fitted),
        _mean(rates.prefill_token_s for rates in fitted),
        _mean(rates.prefill_attended_s for rates in fitted),
    )
    by_medium = zip(*map(_transfer_rates, known), strict=True)
    transfers = [_mean(filter(None, speeds)) for speeds in by_medium]
    return ReplicaRates(*prefill, *transfers)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else 0.0
