"""``python -m engine.forge``: imports what ranks need once, and forks them for fronts of this node.

Ends when its standard input does, which its parent holds open; ranks that it forked go on.
"""

import argparse
import gc
import logging
import os
import sys
import time
from pathlib import Path

from engine.forge.code import this_code
from engine.forge.forge import Forge

logger = logging.getLogger("engine.forge")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.forge")
    parser.add_argument("--socket", type=Path, required=True, help="in a private folder")
    socket_path = parser.parse_args().socket
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    started_s = time.monotonic()
    code = this_code()  # before the imports: code that changes meanwhile is another one
    _import_all()
    forge = Forge(socket_path, code)
    logger.info("ready after %.2f s", time.monotonic() - started_s)
    try:
        order = forge.serve(sys.stdin.fileno())
    finally:
        forge.close()
    if order is None:
        socket_path.unlink(missing_ok=True)
        return 0
    from engine.forge.forked import run_rank

    return run_rank(order)


def _import_all() -> None:
    """All that a rank imports until it is ready, without a second thread."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it starts them as it is loaded
    import torch

    torch.set_num_threads(1)  # some modules compute constants
    import engine.collectives
    import engine.forge.forked
    import engine.torch_loading  # noqa: F401

    gc.collect()
    gc.freeze()  # no child looks through it, which would copy all of its pages


if __name__ == "__main__":
    sys.exit(main())
