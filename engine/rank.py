"""``python -m engine.rank``: the process of one tensor-parallel rank, a child of the front.

The first frame on the socket ``--fd`` is the ``EngineSpec`` as JSON. The process loads its part of
the model, says so (or ``Failed``, with one line that says what to change) and runs its loop until
its parent, or rank 0, is gone: rank 0 the step loop, the others one that follows it.
"""

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.broadcast_runner import BroadcastRunner
from engine.config import EngineSpec, RankSpec
from engine.engine import Engine
from engine.errors import EngineError, StepOutOfMemory
from engine.follower_arena import FollowerArena
from engine.follower_link import RanksOutOfStep
from engine.follower_loop import FollowerLoop
from engine.garbage import GarbageCollector
from engine.memory_report import MemoryReport
from engine.observations import MemoryBytes
from engine.profiling import StepProfiler
from engine.rank_messages import Failed, Loaded, RankEvent, Ready
from engine.runner import LoadedRunner, check_start, create_runner
from engine.sleeper import Sleeper
from engine.start_stages import StageClock
from engine.step import ModelRunner
from engine.step_loop import StepLoop
from engine.tier_setup import use_node_cache
from engine.warm_up import warm_up
from wire.errors import ConnectionClosed
from wire.pipe import SyncPipe

if TYPE_CHECKING:
    from engine.collectives import Collectives  # imports torch

logger = logging.getLogger("engine.rank")

WARM_UP_LIMIT_S = 1.5
"""The last round starts before that: on a slow CPU a full warm-up would cost more than it saves."""
_FIRST_FRAME_TIMEOUT_S = 30.0
_LAST_WORDS_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1


class _Loop(Protocol):
    def run(self) -> None:
        """Until a pipe closes (``ConnectionClosed``) or the loop cannot go on."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where this process stands in its group."""

    rank: int
    links: list[socket.socket]
    """On rank 0 to each of the others, elsewhere to rank 0."""
    rendezvous: Path | None
    spawned_s: float
    """When it was asked for, by the monotonic clock that all processes share."""


def main(words: Sequence[str] | None = None) -> int:
    """``words``: in place of the command line's."""
    arguments = _parse(words)
    label = f"rank {arguments.rank}: " if arguments.link_fd else ""
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s %(levelname)s %(name)s: {label}%(message)s"
    )
    if arguments.parent_pid is not None:
        _die_with_parent(arguments.parent_pid)
    front = SyncPipe(socket.socket(fileno=arguments.fd))
    links = [socket.socket(fileno=fd) for fd in arguments.link_fd]
    loop: _Loop | None = None
    try:
        place = _Place(arguments.rank, links, arguments.rendezvous, arguments.spawned_s)
        loop = _load(front, place)
        loop.run()
    except ConnectionClosed as closed:
        logger.info("this process is not needed any more: %s", closed.reason)
        return 0
    except (Exception, RanksOutOfStep) as error:
        message = _describe(error, is_started=loop is not None)
        logger.error("%s", message, exc_info=None if isinstance(error, EngineError) else error)
        _say_last(front, Failed(label + message))
    return 1


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.rank")
    parser.add_argument("--fd", type=int, required=True, help="socket to the engine's front")
    parser.add_argument("--parent-pid", type=int, help="whose end is this process's, too")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--spawned-s", type=float, required=True)
    parser.add_argument("--link-fd", type=int, action="append", default=[])
    parser.add_argument("--rendezvous", type=Path, help="folder where the ranks find each other")
    return parser.parse_args(words)


def _load(front: SyncPipe, place: _Place) -> _Loop:
    started_s = time.monotonic()
    stages = StageClock(place.spawned_s)
    frames = front.poll(_FIRST_FRAME_TIMEOUT_S)
    if not frames:
        raise EngineError("the front did not say what to load")
    spec = EngineSpec.model_validate_json(frames[0])
    rank = RankSpec(place.rank, spec.config.tensor_parallel_size)
    stages.end("process")
    _import_torch(spec)
    stages.end("imports")
    if rank.rank == 0:  # the others wait to be joined, and load afterwards
        check_start(spec)
    collectives = _join_ranks(spec, rank, place.rendezvous)
    if collectives is not None:
        stages.end("join")
    loaded = create_runner(spec, rank, collectives, stages)
    load_time_s = time.monotonic() - started_s
    garbage = GarbageCollector()
    if rank.rank > 0:
        garbage.take_over()
        _say(front, Loaded(load_time_s))
        [leader] = place.links
        return FollowerLoop(
            loaded.runner,
            leader=SyncPipe(leader),
            front=front,
            arena=FollowerArena(rank.rank, spec.model),
            garbage=garbage,
        )
    runner = BroadcastRunner(loaded.runner, place.links) if rank.size > 1 else loaded.runner
    engine, ready = _warm_engine(spec, loaded, runner, load_time_s)
    stages.end("warm_up")
    use_node_cache(engine, spec, loaded, runner)
    garbage.take_over()
    stages.end("node_cache")
    _say(front, msgspec.structs.replace(ready, stages=stages.stages))
    sleeper = Sleeper(engine, runner, num_host_bytes=_host_pool_bytes(spec, loaded))
    return StepLoop(engine, front, garbage, StepProfiler(loaded.probe), sleeper)


def _import_torch(spec: EngineSpec) -> None:
    """And all else that is imported later; a paced rank needs none of it."""
    if spec.config.runner != "paced":
        import engine.torch_loading  # noqa: F401
    gc.freeze()  # it lives for ever: looking through it takes 0.1 s


def _join_ranks(spec: EngineSpec, rank: RankSpec, rendezvous: Path | None) -> "Collectives | None":
    """None where nothing is computed together, and torch need not be imported."""
    if rendezvous is None or spec.config.runner == "paced":
        return None
    from engine.collectives import join_ranks

    return join_ranks(
        rank,
        rendezvous=rendezvous,
        device=spec.config.device,
        timeout_s=spec.config.start_timeout_s,
    )


def _warm_engine(
    spec: EngineSpec, loaded: LoadedRunner, runner: ModelRunner, load_time_s: float
) -> tuple[Engine, Ready]:
    started_s = time.monotonic()
    engine = Engine(
        spec.config,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=runner,
    )
    load = warm_up(
        engine,
        spec.config,
        max_len=engine.max_request_tokens,
        vocab_size=loaded.vocab_size,
        limit_s=WARM_UP_LIMIT_S,
    )
    return engine, Ready(
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        max_request_tokens=engine.max_request_tokens,
        vocab_size=loaded.vocab_size,
        weights_revision=loaded.weights_revision,
        load=load,
        load_time_s=load_time_s,
        warm_up_time_s=time.monotonic() - started_s,
        memory=_memory_bytes(loaded.memory) if loaded.memory is not None else None,
    )


def _host_pool_bytes(spec: EngineSpec, loaded: LoadedRunner) -> int:
    """What the KV pools of all ranks take of the machine's memory."""
    if loaded.memory is None or spec.config.device != "cpu":
        return 0
    return loaded.memory.kv_pool_bytes * spec.config.tensor_parallel_size


def _memory_bytes(memory: MemoryReport) -> MemoryBytes:
    return MemoryBytes(
        weights=memory.weight_bytes,
        workspace=memory.workspace_bytes,
        kv_pool=memory.kv_pool_bytes,
        kv_block=memory.geometry.block_bytes,
        kv_token=memory.geometry.token_bytes,
    )


def _say(front: SyncPipe, event: RankEvent) -> None:
    front.send(msgspec.msgpack.encode(event))


def _say_last(front: SyncPipe, event: RankEvent) -> None:
    with contextlib.suppress(ConnectionClosed):
        _say(front, event)
        front.flush(_LAST_WORDS_TIMEOUT_S)


def _describe(error: BaseException, *, is_started: bool) -> str:
    """Why this process ends, in one line."""
    if isinstance(error, StepOutOfMemory):
        message = f"out of memory in a step: {error}"
    elif isinstance(error, EngineError | RanksOutOfStep):
        message = str(error)
    elif isinstance(error, MemoryError) and not is_started:
        message = (
            "not enough memory to load the model: lower kv_cache_bytes or use a larger machine"
        )
    else:
        what = "a step failed" if is_started else "the engine could not start"
        message = f"{what}: {type(error).__name__}: {error}"
    return " ".join(message.split())


def _die_with_parent(parent_pid: int) -> None:
    """End at once when the parent does, even in the middle of a step.

    Elsewhere than on Linux the end of the pipe has to do.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the call
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
