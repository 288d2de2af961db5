"""``python -m engine.rank``: the process of one tensor-parallel rank, a child of the front.

The first frame on the socket ``--fd`` is the ``EngineSpec`` as JSON. The process loads the model,
warms up, says ``Ready`` (or ``Failed``, with one line that says what to change) and runs the step
loop until its parent is gone.
"""

import argparse
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import time

import msgspec

from engine.config import EngineSpec
from engine.engine import Engine
from engine.errors import EngineError
from engine.rank_messages import Failed, Ready
from engine.step_loop import StepLoop
from engine.warm_up import warm_up
from wire.errors import ConnectionClosed
from wire.pipe import SyncPipe

logger = logging.getLogger("engine.rank")

WARM_UP_LIMIT_S = 1.5
"""The last round starts before that: on a slow CPU a full warm-up would cost more than it saves."""
_FIRST_FRAME_TIMEOUT_S = 30.0
_LAST_WORDS_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.rank")
    parser.add_argument("--fd", type=int, required=True, help="socket to the engine's front")
    parser.add_argument("--parent-pid", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    _die_with_parent(arguments.parent_pid)
    pipe = SyncPipe(socket.socket(fileno=arguments.fd))
    try:
        loop = _start(pipe)
        if loop is not None:
            loop.run()
    except ConnectionClosed as closed:
        logger.info("the front is gone (%s)", closed.reason)
        return 0
    except Exception:
        logger.exception("the step loop failed; this process ends")
    return 1


def _start(pipe: SyncPipe) -> StepLoop | None:
    """Load and warm up; tells the front how it went. ``None`` if it failed."""
    try:
        return _load(pipe)
    except ConnectionClosed:
        raise
    except EngineError as error:
        message = str(error)
    except MemoryError:
        message = (
            "not enough memory to load the model: lower kv_cache_bytes or use a larger machine"
        )
    except Exception as error:
        logger.exception("the engine could not start")
        message = f"the engine could not start: {type(error).__name__}: {error}"
    logger.error("%s", message)
    pipe.send(msgspec.msgpack.encode(Failed(" ".join(message.split()))))
    pipe.flush(_LAST_WORDS_TIMEOUT_S)
    return None


def _load(pipe: SyncPipe) -> StepLoop:
    started_s = time.monotonic()
    frames = pipe.poll(_FIRST_FRAME_TIMEOUT_S)
    if not frames:
        raise EngineError("the front did not say what to load")
    spec = EngineSpec.model_validate_json(frames[0])
    from engine.runner import create_runner  # imports torch; the spec is checked first

    loaded = create_runner(spec)
    load_time_s = time.monotonic() - started_s
    engine = Engine(
        spec.config,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )
    load = warm_up(
        engine,
        spec.config,
        max_len=engine.max_request_tokens,
        vocab_size=loaded.vocab_size,
        limit_s=WARM_UP_LIMIT_S,
    )
    gc.collect()
    gc.freeze()  # the model lives for ever: a full collection would only walk it during a step
    ready = Ready(
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        max_request_tokens=engine.max_request_tokens,
        vocab_size=loaded.vocab_size,
        weights_revision=loaded.weights_revision,
        load=load,
        load_time_s=load_time_s,
        warm_up_time_s=time.monotonic() - started_s - load_time_s,
    )
    pipe.send(msgspec.msgpack.encode(ready))
    return StepLoop(engine, pipe)


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
