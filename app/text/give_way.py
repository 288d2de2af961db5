"""Lets other threads run between two pieces of long work in this one.

A thread that wants the interpreter lock waits 5 ms before it asks for it; the event loop, and so
every stream, is such a thread. Must not know what the work is.
"""

import time

_MIN_ITEMS = 8192
"""Less is done in a fraction of a millisecond, mostly on the event loop itself."""

_PAUSE_S = 1e-6
"""Some 50 µs in truth; without any, this thread would take the lock back before another wakes."""


def give_way(num_items: int) -> None:
    """After a piece of work on ``num_items`` tokens."""
    if num_items >= _MIN_ITEMS:
        time.sleep(_PAUSE_S)
