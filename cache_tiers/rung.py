"""How warm a replica, or the weights that it would need, stand: the names of the warm ladder."""

from enum import IntEnum


class Rung(IntEnum):
    """Coldest first; each is promoted to the next."""

    COLD = 0
    """Weights in the object store only."""
    ON_DISK = 1
    """On the node's NVMe."""
    STAGED = 2
    """In the node's CPU memory."""
    PARKED = 3
    """A replica with its process, compiled code and graphs, asleep: it holds no KV pool."""
    SERVING = 4
    """Takes requests."""
