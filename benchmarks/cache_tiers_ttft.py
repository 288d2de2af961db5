"""Time to first token of a long prompt that is restored from one tier, beside computing it.

A real model with an empty accelerator. The engine's usage and the node's counters prove where the
prompt came from. Must not know how a tier is set up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median

from benchmarks.cache_tiers_engine import Answer, TierModel
from benchmarks.cache_tiers_pairs import Pairs, single
from benchmarks.cache_tiers_scenes import SCENES, Scene
from benchmarks.result import CaseResult, ResultError
from cache_tiers.tier import TierKind
from engine.engine import Engine

_NUM_PROMPTS = 3
_MAX_WARM_UPS = 16
"""Rounds until the tier holds all of every prompt: a small arena hands little down at a time."""
_MIN_SHARE = 0.9
_MAX_PREDICTION_ERROR = 0.25
_LIMIT_FACTOR = 1.25
"""A first token may take so much longer than the medium takes for the bytes."""
_PREFIX_SHARES = (1.0, 0.3, 0.8, 0.5, 1.0, 0.6, 0.2, 0.9, 0.4, 0.7)
"""Lengths of the prefixes whose fetches are predicted, besides those that are timed."""
_MS = 1e3


@dataclass(slots=True)
class _Figures:
    """Of one tier; one entry for each timed answer unless said otherwise."""

    ttft_ms: Pairs = field(default_factory=Pairs)
    """Of computing and of restoring."""
    limits_ms: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    """Of the prompt, what came from the tier."""
    prediction_errors: list[float] = field(default_factory=list)
    """Of all fetches that the tier alone answered."""


class TtftCase:
    """One tier's cases. The model is the caller's."""

    def __init__(self, model: TierModel, tier: str, prompt_len: int) -> None:
        """``prompt_len``: of the prefix, to which one token is added."""
        self._model = model
        self._tier = tier
        self._block_size = model.block_size_tokens
        num_blocks = prompt_len // self._block_size
        self._prefix_len = num_blocks * self._block_size
        self._prompt_bytes = num_blocks * model.image_bytes
        self._prompts = [model.draw_prompt(self._prefix_len + 1) for _ in range(_NUM_PROMPTS)]
        self._turns: Iterator[list[int]] = cycle(self._prompts)

    def measure(self, num_pairs: int, parent: Path) -> list[CaseResult]:
        """``parent``: for the disk's folder. Raises ``ResultError`` if the tier does not hold the
        prompts.
        """
        with (
            SCENES[self._tier](parent, self._prompt_bytes) as scene,
            self._model.engine(None) as plain,
        ):
            if scene.peer is not None:
                with self._model.engine(scene.peer.socket_path) as engine:
                    for prompt in self._prompts:
                        self._model.ask(engine, prompt, is_kept=True)
            with self._model.engine(scene.node.socket_path) as engine:
                self._warm_up(scene, engine)
                figures = self._measure(scene, engine, plain, num_pairs)
        return self._results(scene, figures)

    def _warm_up(self, scene: Scene, engine: Engine) -> None:
        is_kept = scene.peer is None  # else the arena would pin what only the peer is to hold
        for _ in range(_MAX_WARM_UPS):
            shares = []
            for _ in self._prompts:
                prompt = next(self._turns)
                answer = self._model.ask(engine, prompt, peer=scene.peer_address, is_kept=is_kept)
                shares.append(self._share(scene, answer, prompt))
            if min(shares) >= _MIN_SHARE:
                return
        raise ResultError(f"{self._tier}: after {_MAX_WARM_UPS} rounds the tier holds {shares}")

    def _measure(self, scene: Scene, engine: Engine, plain: Engine, num_pairs: int) -> _Figures:
        figures = _Figures()
        num_brought = scene.num_brought()
        for _ in range(num_pairs):
            prompt = next(self._turns)
            answer = self._ask(scene, engine, prompt, figures)
            computed = self._model.ask(plain, prompt)
            figures.ttft_ms.ours.append(computed.ttft_s * _MS)
            figures.ttft_ms.theirs.append(answer.ttft_s * _MS)
            figures.shares.append(self._share(scene, answer, prompt))
            figures.limits_ms.append((_LIMIT_FACTOR * scene.medium_s() + answer.decode_s) * _MS)
        if scene.kind is not TierKind.HOST:  # whose images need not be brought
            num_blocks = num_pairs * (self._prefix_len // self._block_size)
            figures.shares.append((scene.num_brought() - num_brought) / num_blocks)
            for share in _PREFIX_SHARES:
                prefix_len = int(share * self._prefix_len) + 1
                self._ask(scene, engine, next(self._turns)[:prefix_len], figures)
        return figures

    def _ask(self, scene: Scene, engine: Engine, prompt: list[int], figures: _Figures) -> Answer:
        answer = self._model.ask(engine, prompt, peer=scene.peer_address)
        if self._share(scene, answer, prompt) >= _MIN_SHARE and answer.fetch_s > 0:
            error_s = abs(answer.restored.predicted_s - answer.fetch_s)
            figures.prediction_errors.append(error_s / answer.fetch_s)
        return answer

    def _share(self, scene: Scene, answer: Answer, prompt: list[int]) -> float:
        """Of what can be restored, what came from the scene's tier."""
        restored = answer.restored
        tokens_of = {
            TierKind.HOST: restored.host,
            TierKind.DISK: restored.disk,
            TierKind.PEER: restored.peer,
        }
        return tokens_of[scene.kind] / ((len(prompt) - 1) // self._block_size * self._block_size)

    def _results(self, scene: Scene, figures: _Figures) -> list[CaseResult]:
        tier, ttft_ms = self._tier, figures.ttft_ms
        results = [
            ttft_ms.result(f"ttft_recompute_over_{tier}", "ms", f"restored from {tier}"),
            single(f"ttft_{tier}_of_limit", ttft_ms.theirs, "ms", median(figures.limits_ms)),
            single(f"restored_share_{tier}", [min(figures.shares)], "of the prefix", _MIN_SHARE),
        ]
        if scene.kind is not TierKind.HOST:
            errors = figures.prediction_errors
            if not errors:
                raise ResultError(f"{tier}: no fetch came from this tier alone")
            results.append(
                single(
                    f"predicted_load_error_{tier}", errors, "of the actual", _MAX_PREDICTION_ERROR
                )
            )
        return results
