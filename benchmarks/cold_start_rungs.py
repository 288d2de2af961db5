"""How fast weights climb each rung of the ladder on this machine, beside the medium that they come
over: real nodes in processes of their own, with cold caches, until all pages are there.

- ``store``: from an object store on loopback, where the processors are the limit, too;
  ``store_behind_link``: from one behind a link of a given bandwidth; ``store_moto``: from moto's,
  which is slow itself. Beside a plain parallel reader of ranges that throws the bytes away.
- ``disk``: from this machine's disk, beside plain parallel reads past the page cache.
- ``peer``: from a node that has them staged, beside sendfile into memory over as many streams.
- ``staged_mapped``, ``staged_read``: by a process like a rank, out of the node's memory, beside
  copies within memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.cache_tiers_pairs import GB, Pairs
from benchmarks.cold_start_mapping import map_in_process
from benchmarks.cold_start_media import forget_pages, read_direct_s, read_urls_s, receive_s
from benchmarks.cold_start_model import SOURCE
from benchmarks.cold_start_moto import moto_store
from benchmarks.cold_start_node import NodeLayout, running_node, source_environment
from benchmarks.cold_start_projection import Reached
from benchmarks.object_store import BUCKET, object_store
from benchmarks.result import CaseResult
from cache_tiers.config import WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.chunk_messages import ChunkLimits
from cache_tiers.weights.messages import WeightsOrder
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.checkpoints.transfer import NUM_READERS

LEAST_SHARE = 0.85
"""Of the medium's bandwidth: the promise."""
LINK_BYTES_PER_S = 500e6
NUM_DISK_THREADS = 8
TIMEOUT_S = 300.0
_HOST_SHARE = 2.0
"""Memory for weights, in models."""
_URL_S = 3600


@dataclass(frozen=True, slots=True)
class Subject:
    """A checkpoint whose climb is measured."""

    name: str
    folder: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        return open_checkpoint(self.folder).weights_paths

    @property
    def sizes(self) -> list[int]:
        return [path.stat().st_size for path in self.paths]

    def order(self, rung: Rung, parents: tuple[PeerAddress, ...] = ()) -> WeightsOrder:
        return WeightsOrder(
            model=self.name,
            source=SOURCE,
            rung=rung,
            weights_sha256=open_checkpoint(self.folder).revision,
            parents=parents,
        )


class RungCases:
    """Of one subject; each method measures a rung."""

    def __init__(self, subject: Subject, num_pairs: int, scratch: Path) -> None:
        self._subject = subject
        self._num_pairs = num_pairs
        self._scratch = scratch
        self._num_bytes = sum(subject.sizes)
        self._config = WeightsConfig(
            host_bytes=int(_HOST_SHARE * self._num_bytes) + 64 * 1024**2, keep_on_disk=False
        )

    def store(self, case: str, bytes_per_s: float | None = None) -> CaseResult:
        with object_store(self._subject.folder, bytes_per_s=bytes_per_s) as url:
            urls = [f"{url}/{BUCKET}/model/{path.name}" for path in self._subject.paths]
            return self._from_urls(case, url, urls)

    def moto(self) -> CaseResult:
        with moto_store(self._subject.folder) as (url, sign):
            urls = [sign(path.name) for path in self._subject.paths]
            return self._from_urls("store_moto", url, urls)

    def disk(self) -> CaseResult:
        """With the model in the node's home, and none of it in the page cache."""
        paths = self._subject.paths

        def ours() -> float:
            with self._layout() as layout:
                folder = checkpoint_path(layout.home, self._subject.name)
                folder.mkdir(parents=True)
                for path in self._subject.folder.iterdir():
                    if path.is_file() and not path.name.startswith("."):
                        os.link(path, folder / path.name)
                forget_pages(paths)
                return self._staged_s(layout, origin="disk")

        def theirs() -> float:
            forget_pages(paths)
            return read_direct_s(paths, NUM_DISK_THREADS)

        return self._measure("disk", ours, theirs, "plain O_DIRECT read")

    def peer_and_staged(self) -> list[CaseResult]:
        with ExitStack() as stack:
            url = stack.enter_context(object_store(self._subject.folder))
            layout = stack.enter_context(self._layout())
            node = stack.enter_context(
                running_node(self._config, layout, environment=source_environment(url))
            )
            state = node.reach(self._subject.order(Rung.STAGED), TIMEOUT_S)
            folder = Path(state.folder)
            return [self._peer(node.address, folder), *self._staged(folder)]

    def _peer(self, parent: PeerAddress, staged: Path) -> CaseResult:
        def ours() -> float:
            with self._layout() as layout:
                return self._staged_s(layout, parents=(parent,), origin="peer")

        with object_store(staged) as url:
            urls = [f"{url}/{BUCKET}/model/{path.name}" for path in self._subject.paths]
            num_streams = ChunkLimits().num_streams
            return self._measure(
                "peer",
                ours,
                lambda: receive_s(urls, self._subject.sizes, num_streams),
                "sendfile into memory",
            )

    def _staged(self, folder: Path) -> list[CaseResult]:
        mapped, read = Pairs(), Pairs()
        for _ in range(self._num_pairs):
            seconds = map_in_process(folder)
            mapped.ours.append(seconds.mapped_s)
            mapped.theirs.append(seconds.memcpy_s)
            read.ours.append(seconds.read_s)
            read.theirs.append(seconds.copied_s)
        return [
            self._held("staged_mapped", mapped, "memcpy"),
            self._held("staged_read", read, "copy of mapped memory"),
        ]

    def _from_urls(self, case: str, url: str, urls: list[str]) -> CaseResult:
        def ours() -> float:
            with self._layout() as layout:
                return self._staged_s(layout, url=url, origin="source")

        sizes = self._subject.sizes
        return self._measure(
            case, ours, lambda: read_urls_s(urls, sizes, NUM_READERS), "plain reader of ranges"
        )

    @contextmanager
    def _layout(self) -> Iterator[NodeLayout]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            yield NodeLayout(Path(folder))

    def _staged_s(
        self,
        layout: NodeLayout,
        *,
        origin: str,
        url: str = "http://127.0.0.1:9",
        parents: tuple[PeerAddress, ...] = (),
    ) -> float:
        """Seconds from the order to a folder that ranks can open, on a node that has just begun."""
        with running_node(self._config, layout, environment=source_environment(url)) as node:
            started_s = time.perf_counter()
            state = node.reach(self._subject.order(Rung.STAGED, parents), TIMEOUT_S)
            seconds = time.perf_counter() - started_s
            assert state.origin == origin, f"it came from {state.origin}"
        return seconds

    def _measure(
        self, case: str, ours: Callable[[], float], theirs: Callable[[], float], peer: str
    ) -> CaseResult:
        pairs = Pairs()
        for _ in range(self._num_pairs):
            pairs.add(ours, theirs)
        return self._held(case, pairs, peer)

    def _held(self, case: str, pairs: Pairs, peer: str) -> CaseResult:
        return held(pairs, self._num_bytes, f"{self._subject.name}_{case}", peer)


def held(pairs: Pairs, num_bytes: int, case: str, peer: str) -> CaseResult:
    """Seconds as GB/s, against the promised share of what the medium gave."""
    result = pairs.rates(num_bytes, case, peer)
    assert result.peer_value is not None
    return msgspec.structs.replace(result, limit=LEAST_SHARE * result.peer_value, of_limit=None)


def reached(results: list[CaseResult], subject: str) -> dict[str, Reached]:
    """By rung, as the projection knows them."""
    cases = {
        f"{subject}_store_behind_link": "store",
        f"{subject}_disk": "disk",
        f"{subject}_peer": "peer",
        f"{subject}_staged_mapped": "staged",
    }
    return {
        cases[result.case]: Reached(result.value * GB, result.ratio.median)
        for result in results
        if result.case in cases and result.ratio is not None
    }
