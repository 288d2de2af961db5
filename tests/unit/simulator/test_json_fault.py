"""What is wrong with JSON is said in words of JSON."""

import msgspec
import pytest

from simulator.json_fault import describe_fault


class Inner(msgspec.Struct):
    size: int


class Outer(msgspec.Struct):
    name: str
    inner: list[Inner] = []
    is_on: bool | None = None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{}", "name is missing"),
        ('{"name": "a", "inner": [{}]}', "size is missing in inner[0]"),
        ('{"name": 3}', "name is an integer, not a text"),
        ('{"name": "a", "inner": [{"size": 1.5}]}', "inner[0].size is a number, not an integer"),
        ('{"name": "a", "inner": null}', "inner is null, not a list"),
        ("[]", "it is a list, not an object"),
        ('{"name": "a"', "it is no JSON (Input data was truncated)"),
        ('{"name": "a", "is_on": 3}', "Expected `bool | null`, got `int` - at `$.is_on`"),
    ],
)
def test_a_fault_is_said_in_words(content: str, fault: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(content, type=Outer)
    assert describe_fault(caught.value) == fault
