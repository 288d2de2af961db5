"""Counter-based randomness: a draw's number follows from (seed, position) alone.

So preemption, migration, speculation and the rest of the batch don't change what a request draws.
Must not know logits.
"""

import numpy as np
from numpy.typing import NDArray


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position): two rounds of the SplitMix64 finalizer
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    mixed = _mix(_mix(positions.astype(np.uint64)) ^ seeds)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
