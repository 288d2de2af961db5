"""Seeds of samples: the first is the request's own, the others are unlike it and each other."""

from engine.seeds import mix64, sample_seed


def test_the_mixing_function_is_that_of_the_paper() -> None:
    # The first outputs of the reference implementation with state 0 (Vigna, splitmix64.c).
    states = [(index * 0x9E3779B97F4A7C15) % 2**64 for index in range(3)]
    assert [mix64(state) for state in states] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_seeds_of_samples_differ_and_the_first_is_the_requests_own() -> None:
    seeds = {sample_seed(seed, index) for seed in range(100) for index in range(100)}
    assert len(seeds) == 10_000
    assert [sample_seed(seed, 0) for seed in (0, 5, 2**64 - 1)] == [0, 5, 2**64 - 1]
    assert all(0 <= sample_seed(2**64 - 1, index) < 2**64 for index in range(128))
    # Neighbours differ in about half of their bits.
    flips = [(sample_seed(7, i) ^ sample_seed(7, i + 1)).bit_count() for i in range(1, 127)]
    assert 28 < sum(flips) / len(flips) < 36
