"""Small operations of torch on the calling thread alone.

What takes microseconds gains nothing from a second thread, and its end waits for that: where the
cores are busy with something else, for the rest of its time slice. MKL wakes its threads for the
cosines of a few hundred numbers already (60 ms instead of 0.09 ms on two cores with ten busy
processes).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Afterwards torch has as many as before."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
