"""The quick histogram says what ``prometheus_client``'s own says."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from app.bucket_counts import BucketCountsByModel

BOUNDS = (0.01, 0.025, 1.0, 80.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", 'b"\\\n']),
            st.one_of(st.sampled_from([0.0, *BOUNDS]), st.floats(0, 1000)),
        ),
        max_size=30,
    )
)
def test_a_scrape_is_the_same_as_of_a_slow_histogram(values: list[tuple[str, float]]) -> None:
    registry, slow_registry = CollectorRegistry(), CollectorRegistry()
    quick = BucketCountsByModel("headwater:x_seconds", "Times.", BOUNDS)
    registry.register(quick)
    slow = Histogram(
        "headwater:x_seconds", "Times.", ["model_name"], buckets=BOUNDS, registry=slow_registry
    )
    for model, value in values:
        quick.of(model).observe(value)
        slow.labels(model).observe(value)
    expected = generate_latest(slow_registry).decode().split("# HELP headwater:x_seconds_created")
    assert generate_latest(registry).decode() == expected[0]
