"""Makes a freshly forked process what an interpreter of its own would be, and runs the rank in it.

Limits, priority and control group stay the forge's. Linux only.
"""

import ctypes
import logging
import os

import numpy as np

from engine import rank
from engine.forge.code import SOURCE_ROOT
from engine.forge.forge import RankOrder

_PR_SET_NAME = 15
_NAME = b"headwater-rank"
"""At most 15 characters; the command line stays the forge's."""


def run_rank(order: RankOrder) -> int:
    """Call on the forge's only thread, when all of its own descriptors are closed; the exit code of
    the rank.
    """
    os.setsid()  # Ctrl-C is for the front, which drains first
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME)
    os.environb.clear()
    os.environb.update(order.fork.environment)
    os.chdir(SOURCE_ROOT)
    output, errors, pipe, *links = order.descriptors
    for descriptor, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    for handler in list(logging.root.handlers):  # the rank sets up its own
        logging.root.removeHandler(handler)
    np.random.seed()  # torch begins alike in each process, random seeds itself
    arguments = [*order.fork.arguments, "--fd", str(pipe)]
    for link in links:
        arguments += ["--link-fd", str(link)]
    return rank.main(arguments)
