"""From the wish for a replica to its first token, by how warm the model stood, with the time of
each stage: a real model, a real node and a real engine, with and without a forge.

- ``start_parked``: an engine that sleeps is woken.
- ``start_staged``: the node has the weights in memory, and has had a replica of them before.
- ``start_on_disk``: they are on its disk, and not in the page cache.
- ``start_cold``: they are in an object store on loopback, with what earlier replicas made of them:
  weights packed for a rank, the compiled step. ``start_cold_bare``: without that.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.cache_tiers_pairs import single
from benchmarks.cold_start_front import started_engine
from benchmarks.cold_start_media import forget_pages
from benchmarks.cold_start_node import NodeLayout, WeightsNode, running_node, source_environment
from benchmarks.cold_start_rungs import Subject
from benchmarks.object_store import object_store
from benchmarks.result import CaseResult, ResultError
from cache_tiers.config import WeightsConfig
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.checkpoints.extras import published_name
from engine.checkpoints.manifest import entry_of_file, write_manifest
from engine.checkpoints.store import open_checkpoint
from engine.config import MIB, EngineConfig, EngineSpec
from engine.forge.start import start_forge
from engine.native.support import compile_cache

MOST_PARKED_S = 0.3
MOST_STAGED_S = 3.0
ENGINE = EngineConfig(num_threads=1, kv_cache_bytes=256 * MIB)
_TIMEOUT_S = 120.0
_FORGE_S = 60.0
_MOST_IMPORTS_S = 0.3
"""Of a rank that was forked: far less than any interpreter takes."""
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Start:
    """One, to its first token."""

    seconds: float
    stages: tuple[Stage, ...]


class StartCases:
    """Of one model that the engine runs."""

    def __init__(self, subject: Subject, num_runs: int, scratch: Path) -> None:
        self._subject = subject
        self._num_runs = num_runs
        self._scratch = scratch
        num_bytes = sum(path.stat().st_size for path in subject.folder.iterdir())
        self._config = WeightsConfig(
            host_bytes=2 * num_bytes + 64 * MIB, keep_on_disk=False, trust_libraries=True
        )

    def measure(self) -> list[CaseResult]:
        results = self._parked()
        with object_store(self._subject.folder) as url:
            results += self._results("start_cold_bare", self._cold(url, None, num_runs=1))
        with object_store(self._published()) as url, self._forge() as forge:
            for socket, suffix in ((None, ""), (forge, "_with_forge")):
                results += self._results(f"start_staged{suffix}", self._staged(url, socket))
                results += self._results(f"start_on_disk{suffix}", self._on_disk(url, socket))
                results += self._results(f"start_cold{suffix}", self._cold(url, socket))
        return results

    def _parked(self) -> list[CaseResult]:
        spec = self._spec(self._subject.folder, Rung.ON_DISK, None)

        async def wake() -> list[float]:
            seconds = []
            async with started_engine(spec, self._folder()) as engine:
                await engine.first_token()
                for _ in range(self._num_runs):
                    await engine.go_to(Rung.PARKED)
                    started_s = time.perf_counter()
                    engine.order(Rung.SERVING)
                    await engine.first_token()
                    seconds.append(time.perf_counter() - started_s)
            return seconds

        return [single("start_parked", asyncio.run(wake()), "s", MOST_PARKED_S)]

    def _published(self) -> Path:
        """The model, and what the first engine has left beside it."""
        source, target = self._subject.folder, self._folder()
        manifest = open_checkpoint(source).manifest
        made = {path.name: path for path in source.glob("packed-*.weights")}
        made |= {published_name(path): path for path in compile_cache(source).glob("step-*.so")}
        for name, path in {**{name: source / name for name in manifest.files}, **made}.items():
            shutil.copy2(path, target / name)  # times, too
        extras = {name: entry_of_file(target / name) for name in made}
        write_manifest(target, msgspec.structs.replace(manifest, extras=extras))
        return target

    def _staged(self, url: str, forge: Path | None) -> list[Start]:
        """The first one leaves what it made of the weights, and isn't counted."""
        with self._node(url) as node:
            state = node.reach(self._subject.order(Rung.STAGED), _TIMEOUT_S)
            starts = [
                self._start(time.perf_counter(), Path(state.folder), Rung.STAGED, forge)
                for _ in range(self._num_runs + 1)
            ]
        return starts[1:]

    def _on_disk(self, url: str, forge: Path | None) -> list[Start]:
        with self._node(url) as node:
            folder = Path(node.reach(self._subject.order(Rung.ON_DISK), _TIMEOUT_S).folder)
        starts = []
        for _ in range(self._num_runs):
            with self._node(url, home=folder.parents[1]) as node:
                forget_pages([path for path in folder.iterdir() if path.is_file()])
                starts.append(self._brought(node, Rung.ON_DISK, forge))
        return starts

    def _cold(self, url: str, forge: Path | None, num_runs: int | None = None) -> list[Start]:
        starts = []
        for _ in range(num_runs or self._num_runs):
            with self._node(url) as node:
                starts.append(self._brought(node, Rung.COLD, forge))
        return starts

    def _brought(self, node: WeightsNode, rung: Rung, forge: Path | None) -> Start:
        started_s = time.perf_counter()
        state = node.reach(self._subject.order(Rung.STAGED), _TIMEOUT_S)
        brought = Stage("brought", time.perf_counter() - started_s, state.num_bytes)
        return self._start(started_s, Path(state.folder), rung, forge, (brought, *state.stages))

    def _start(
        self,
        started_s: float,
        folder: Path,
        rung: Rung,
        forge: Path | None,
        before: tuple[Stage, ...] = (),
    ) -> Start:
        async def first_token() -> tuple[Stage, ...]:
            spec = self._spec(folder, rung, forge)
            async with started_engine(spec, self._folder()) as engine:
                await engine.first_token()
                ended.append(time.perf_counter())
                return engine.stages

        ended: list[float] = []
        stages = asyncio.run(first_token())
        if forge is not None and _imports_s(stages) > _MOST_IMPORTS_S:
            raise ResultError("the forge was not used: see above; has the code changed meanwhile?")
        return Start(ended[0] - started_s, (*before, *stages))

    def _results(self, case: str, starts: Sequence[Start]) -> list[CaseResult]:
        limit = MOST_STAGED_S if case.startswith("start_staged") else None
        seconds = [start.seconds for start in starts]
        by_name: dict[str, list[float]] = {}
        for start in starts:
            for stage in start.stages:
                by_name.setdefault(stage.name, []).append(stage.time_s)
        return [
            single(case, seconds, "s", limit),
            *(single(f"{case}_stage_{name}", times, "s") for name, times in by_name.items()),
        ]

    @contextmanager
    def _forge(self) -> Iterator[Path]:
        """One that answers."""
        socket = self._folder() / "forge.sock"
        process = start_forge(socket)
        try:
            deadline_s = time.monotonic() + _FORGE_S
            while not socket.exists():
                if time.monotonic() > deadline_s or process.poll() is not None:
                    raise ResultError("the forge does not start: see above")
                time.sleep(_POLL_S)
            yield socket
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def _node(self, url: str, home: Path | None = None) -> Iterator[WeightsNode]:
        layout = NodeLayout(self._folder(), home)
        with running_node(self._config, layout, environment=source_environment(url)) as node:
            yield node

    def _spec(self, folder: Path, rung: Rung, forge: Path | None) -> EngineSpec:
        return EngineSpec(
            model=self._subject.name,
            checkpoint=folder,
            config=ENGINE,
            started_from=rung,
            forge_socket=forge,
        )

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._scratch))


def _imports_s(stages: Sequence[Stage]) -> float:
    return sum(stage.time_s for stage in stages if stage.name == "imports")
