"""``python -m benchmarks.wire_rank``: the rank process of a front whose engine is a script.

The real step loop over a ``ScriptedEngine``; started by the front like ``engine.rank``. Between two
steps it takes what comes at once: a real one computes then, and that time is not the wire's.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import socket
import sys
from typing import cast

import msgspec

from benchmarks.wire_count import DeliveryCount
from benchmarks.wire_script import NUM_BLOCKS, PREFILL_TOKENS_PER_S, ScriptedEngine
from engine.config import EngineSpec
from engine.engine import Engine
from engine.messages import LoadView
from engine.rank_messages import Ready
from engine.step_loop import StepLoop
from wire.errors import ConnectionClosed
from wire.pipe import SyncPipe

_FIRST_FRAME_TIMEOUT_S = 30.0


class _SteppedPipe(SyncPipe):
    """Waits no longer than until the engine's next step is due."""

    engine: ScriptedEngine | None = None

    def poll(self, timeout_s: float) -> list[bytes]:
        wait_s = self.engine.wait_s if self.engine is not None else None
        return super().poll(timeout_s if wait_s is None else wait_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire_rank")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--spawned-s", type=float, required=True)
    pipe = _SteppedPipe(socket.socket(fileno=parser.parse_args().fd))
    with contextlib.suppress(ConnectionClosed):
        [first] = pipe.poll(_FIRST_FRAME_TIMEOUT_S)
        spec = EngineSpec.model_validate_json(first)
        pipe.engine = ScriptedEngine(spec.config, DeliveryCount(spec.checkpoint.parent))
        pipe.send(msgspec.msgpack.encode(_ready()))
        gc.collect()
        gc.freeze()
        # The script has what the loop uses of an engine, and nothing else.
        StepLoop(cast(Engine, pipe.engine), pipe).run()
    return 0


def _ready() -> Ready:
    load = LoadView(
        num_free_blocks=NUM_BLOCKS,
        num_blocks=NUM_BLOCKS,
        prefill_tokens_per_s=PREFILL_TOKENS_PER_S,
    )
    return Ready(
        num_blocks=NUM_BLOCKS,
        max_model_len=131_072,
        max_request_tokens=131_072,
        vocab_size=128_256,
        weights_revision="none",
        load=load,
        load_time_s=0.0,
        warm_up_time_s=0.0,
    )


if __name__ == "__main__":
    sys.exit(main())
