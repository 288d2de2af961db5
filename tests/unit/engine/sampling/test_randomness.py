import numpy as np

from engine.sampling.randomness import uniform


def test_seeds_and_positions_give_independent_uniform_numbers() -> None:
    by_position = uniform(np.full(4096, 7, np.uint64), np.arange(4096))
    by_seed = uniform(np.arange(4096, dtype=np.uint64), np.full(4096, 7))
    largest = uniform(np.array([2**64 - 1], np.uint64), np.array([2**40]))
    for numbers in (by_position, by_seed):
        assert ((numbers >= 0) & (numbers < 1)).all()
        counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
        assert abs(counts - 256).max() < 80
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(by_position, by_seed)[0, 1]) < 0.05
    assert 0 <= largest[0] < 1


def test_the_numbers_never_change() -> None:
    """A seed reproduces its answers in later versions, too."""
    numbers = uniform(np.array([0, 1, 2**64 - 1], np.uint64), np.array([0, 1, 7]))
    np.testing.assert_allclose(
        numbers, [0.6524484863740322, 0.9140224628703029, 0.6627413876392583], rtol=1e-15
    )
