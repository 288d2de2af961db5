"""What is learned of reuse."""

from cache_tiers.eviction.reuse_model import MAX_CLASS, ReuseModel, reuse_class


def keys(begin: int, num: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(begin, begin + num)]


def test_before_anything_is_known_older_blocks_are_worth_less() -> None:
    model = ReuseModel(100)
    rates = [model.uses_per_s(0, age_s) for age_s in (0.5, 3.0, 30.0, 300.0, 1e6)]
    assert rates == sorted(rates, reverse=True)


def test_a_usual_pause_does_not_count_against_a_block() -> None:
    model = ReuseModel(1000)
    for step in range(40):  # all return after 100 s
        model.record(keys(0, 50), [1] * 50, 100.0 * step)
    rate = model.uses_per_s(0, 60.0)
    assert rate > model.uses_per_s(0, 1.0)
    assert rate > 10 * model.uses_per_s(0, 2000.0)


def test_one_in_many_keys_tells_of_a_large_tier() -> None:
    small, large = ReuseModel(100), ReuseModel(100_000)
    for model in (small, large):
        for step in range(20):
            model.record(keys(0, 8_000), [1] * 8_000, 100.0 * step)
    assert large.uses_per_s(0, 90.0) > 2 * large.uses_per_s(0, 500.0)


def test_classes_double() -> None:
    assert [reuse_class(num) for num in (0, 1, 2, 3, 4, 8, 16, 1000)] == [
        0, 0, 1, 1, 2, 3, MAX_CLASS, MAX_CLASS,
    ]  # fmt: skip
