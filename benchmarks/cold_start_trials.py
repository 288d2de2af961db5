"""A node and what befalls it: each trial brings a model while one thing goes wrong.

A trial ends within a bounded time with a whole model, or with a clear word and the rung before.
What the node offers then is opened, and every byte of its weights is hashed.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from benchmarks.cold_start_harm import HarmfulLink, HarmfulStore
from benchmarks.cold_start_model import SOURCE
from benchmarks.cold_start_node import NodeLayout, WeightsNode, source_environment, start_node
from benchmarks.cold_start_places import (
    LendingNode,
    NodeOfAnotherVersion,
    Versions,
    set_read_only,
)
from benchmarks.result import ResultError
from cache_tiers.config import WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Origin, WeightsOrder, WeightsState
from engine.checkpoints.errors import CheckpointError
from engine.checkpoints.manifest import sha256_of_file
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.weights.node_process import Counted

BOUND_S = 60.0
"""Every trial ends within it."""
_CLEAR_S = 20.0
_POLL_S = 0.01
_HOST_BYTES = 128 * 1024**2
_FEW_BYTES = 10 * 1024**2
"""Less than one shard."""

Ending = Literal["whole", "refused", "either"]


@dataclass(frozen=True, slots=True)
class Trial:
    """What is ordered, and how it must end."""

    order: WeightsOrder
    ending: Ending
    at: str = "main"
    """Of the lane's nodes."""
    meanwhile: Callable[[], None] | None = None
    """Is called when the order has been given."""
    old_rung: Rung = Rung.COLD
    """That stays in any case."""
    failing: Origin = ""
    """A place that was asked and did wrong, which must be counted."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one trial."""

    fault: str
    is_whole: bool
    origin: str
    """Where the bytes came from in the end; empty: nowhere."""
    seconds: float
    wrong: str | None
    """What must not have happened."""


class Lane:
    """Nodes of its own, a store and a link that do harm, and trials one after the other."""

    def __init__(
        self,
        versions: Versions,
        folder: Path,
        *,
        keep_on_disk: bool,
        seed: int,
    ) -> None:
        self.draw = random.Random(seed)
        self.versions = versions
        self.store = HarmfulStore(versions.good)
        self._parent = LendingNode(versions, lies=False)
        self.link = HarmfulLink(lambda: self._parent.address)
        self.liar = LendingNode(versions, lies=True)
        self.other_version = NodeOfAnotherVersion()
        self._folder = folder
        self._environment = source_environment(self.store.url)
        self._configs = {
            "main": WeightsConfig(host_bytes=_HOST_BYTES, keep_on_disk=keep_on_disk),
            "short_of_memory": WeightsConfig(host_bytes=_FEW_BYTES),
            "small_disk": WeightsConfig(host_bytes=_HOST_BYTES),
        }
        self._layouts = {name: NodeLayout(folder / name) for name in self._configs}
        self._nodes: dict[str, WeightsNode] = {}
        self._num_trials = 0
        self._is_read_only = False

    @contextmanager
    def running(self) -> Iterator[Lane]:
        with ExitStack() as stack:
            parts = (self.store, self._parent, self.link, self.liar, self.other_version)
            for part in parts:
                part.start()
                stack.callback(part.close)
            stack.callback(self._kill_all)
            yield self

    def home(self, at: str) -> Path:
        return self._layouts[at].home

    def node(self, at: str) -> WeightsNode:
        """Is started when it is first needed."""
        if at not in self._nodes:
            self._nodes[at] = start_node(
                self._configs[at], self._layouts[at], environment=self._environment
            )
        return self._nodes[at]

    def kill(self, at: str) -> None:
        """As by kill -9; its folders stay as they are."""
        self._nodes.pop(at).kill()

    def kill_child(self, at: str) -> bool:
        """A process that the node has started; whether there was one."""
        children = psutil.Process(self.node(at).process.pid).children(recursive=True)
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        return bool(children)

    def set_read_only(self, *, is_read_only: bool) -> None:
        """The small disk."""
        set_read_only(self.home("small_disk"), is_read_only=is_read_only)
        self._is_read_only = is_read_only

    def next_model(self) -> str:
        """A name that no trial had before."""
        self._num_trials += 1
        return f"model-{self._num_trials}"

    def order(
        self,
        model: str,
        rung: Rung = Rung.STAGED,
        parents: tuple[PeerAddress, ...] = (),
        weights_sha256: str | None = None,
    ) -> WeightsOrder:
        return WeightsOrder(
            model=model,
            source=SOURCE,
            rung=rung,
            weights_sha256=weights_sha256 or self.versions.manifest.weights_sha256,
            parents=parents,
        )

    def run(self, fault: str, prepare: Callable[[Lane, str], Trial]) -> Outcome:
        model = self.next_model()
        trial = prepare(self, model)
        node, before = self.node(trial.at), self.node(trial.at).counts()
        started_s = time.monotonic()
        self.node(trial.at).order(trial.order)
        if trial.meanwhile is not None:
            trial.meanwhile()
            self.node(trial.at).order(trial.order)  # it may be another process by now
        state = self._ended(trial)
        seconds = time.monotonic() - started_s
        is_whole = state is not None and state.rung >= trial.order.rung
        wrong = "never ended" if state is None else self._wrong(trial, state)
        if wrong is None and self.node(trial.at) is node:  # else its counts went with it
            wrong = _why_not_counted(trial, before, node.counts(), is_whole=is_whole)
        self._restore()
        self._clear(trial)
        origin = state.origin if state is not None and is_whole else ""
        return Outcome(fault, is_whole, origin, seconds, wrong)

    def _ended(self, trial: Trial) -> WeightsState | None:
        """A failure that is tried again by the node is no end where all shall be well."""
        deadline_s = time.monotonic() + BOUND_S
        while time.monotonic() < deadline_s:
            state = self.node(trial.at).order(trial.order)  # repeating it changes nothing
            if state.rung >= trial.order.rung:
                return state
            if state.failure is not None and trial.ending != "whole":
                return state
            time.sleep(_POLL_S)
        return None

    def _wrong(self, trial: Trial, state: WeightsState) -> str | None:
        if state.rung < trial.order.rung:
            failure = state.failure or ""
            if trial.ending == "whole" or not failure or "\n" in failure:
                return f"ended by {failure!r}"
        elif trial.ending == "refused":
            return "was not refused"
        if state.rung < trial.old_rung:
            return f"fell from {trial.old_rung.name} to {state.rung.name}"
        if state.rung > Rung.COLD:
            return self._why_unsound(Path(state.folder))
        return "offers a folder of a cold model" if state.folder else None

    def _why_unsound(self, folder: Path) -> str | None:
        try:
            checkpoint = open_checkpoint(folder)
        except CheckpointError as error:
            return f"what it offers does not open: {error}"
        for name, entry in self.versions.manifest.files.items():
            if sha256_of_file(checkpoint.path / name) != entry.sha256:
                return f"{name} is offered with other bytes"
        return None

    def _restore(self) -> None:
        """The world is well again."""
        self.store.harm.stop()
        self.link.harm.stop()
        self.link.is_open = True
        self.store.root = self.versions.good
        if self._is_read_only:
            self.set_read_only(is_read_only=False)

    def _clear(self, trial: Trial) -> None:
        """Room for the next one. Raises ``ResultError`` if the node doesn't let go of it."""
        node, model = self.node(trial.at), trial.order.model
        cold = msgspec.structs.replace(trial.order, rung=Rung.COLD)
        deadline_s = time.monotonic() + _CLEAR_S
        while node.order(cold).rung is Rung.STAGED or node.report().used_bytes > 0:
            if time.monotonic() > deadline_s:
                raise ResultError(f"{model} stays in memory although nobody wants it")
            time.sleep(_POLL_S)
        home = self.home(trial.at)
        for path in (checkpoint_path(home, model), home / "models" / ".staging" / model):
            shutil.rmtree(path, ignore_errors=True)

    def _kill_all(self) -> None:
        while self._nodes:
            self._nodes.popitem()[1].kill()


def _why_not_counted(
    trial: Trial, before: Counted, after: Counted, *, is_whole: bool
) -> str | None:
    if is_whole and after.num_promoted == before.num_promoted:
        return "is no promotion by the node's counts"
    if not is_whole and after.num_failures == before.num_failures:
        return "is no failure by the node's counts"
    failing = trial.failing
    if failing and _num_failed(after, failing) == _num_failed(before, failing):
        return f"nothing went wrong with the {failing} by the node's counts"
    return None


def _num_failed(counts: Counted, origin: Origin) -> int:
    """A peer fails by its chunks, which come again, or as a whole."""
    num_failed = counts.num_failed_origins.get(origin, 0)
    peers = counts.peers
    num_troubles = peers.num_corrupt + peers.num_lost + peers.num_stalled
    return num_failed + (num_troubles if origin == "peer" else 0)
