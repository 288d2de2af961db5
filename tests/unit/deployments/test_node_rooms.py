import pytest

from deployments.node_rooms import MOST_PER_NODE, Resources, num_fitting, num_unplaced

NODE = {"CPU": 8.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("bundle", "num"),
    [
        ({"CPU": 2.0}, 4),
        ({"CPU": 2.0, "GPU": 2.0}, 2),
        ({"CPU": 0.1}, 80),
        ({"CPU": 9.0}, 0),
        ({"slot": 1.0}, 0),
        ({}, MOST_PER_NODE),
    ],
)
def test_as_many_fit_as_the_scarcest_resource_allows(bundle: Resources, num: int) -> None:
    assert num_fitting(NODE, bundle) == num


def test_nothing_fits_where_more_is_reserved_than_there_is() -> None:
    assert num_fitting({"CPU": -1.0}, {"CPU": 1.0}) == 0


def test_bundles_without_a_place_are_counted_over_all_models() -> None:
    large, small = {"GPU": 4.0}, {"GPU": 1.0}
    assert num_unplaced([small] * 4 + [large], [NODE]) == 4
    assert num_unplaced([small] * 4 + [large], [NODE, NODE]) == 0
    assert num_unplaced([large] * 3, [NODE]) == 2
    assert num_unplaced([], []) == 0
