"""Seeds of samples, and the mixing function they are made with. Pure arithmetic on 64 bits."""

_MASK = (1 << 64) - 1


def mix64(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, 2014): a bijection in which every bit of the result depends on every bit of
    ``value``.
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample ``index`` of a request with ``seed``; sample 0 draws as if alone."""
    return seed if index == 0 else mix64(mix64(seed) ^ index)
