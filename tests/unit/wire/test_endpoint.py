import pytest

from wire.endpoint import Endpoint


@pytest.mark.parametrize("unix_path", [None, "/run/headwater/engine.sock"])
def test_survives_the_trip_through_a_plain_dict(unix_path: str | None) -> None:
    endpoint = Endpoint("10.0.0.7", 4711, unix_path)
    assert Endpoint.from_dict(endpoint.to_dict()) == endpoint


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"port": 1}, "host"),
        ({"host": "h", "port": "1"}, "port"),
        ({"host": "h", "port": 1, "unix_path": 3}, "unix_path"),
    ],
)
def test_names_the_field_that_is_wrong(data: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Endpoint.from_dict(data)
