"""What an offer may say, and when a parent isn't asked any more."""

import pytest

from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import PeerFailed
from cache_tiers.weights.chunk_messages import ChunkLimits, Offer
from cache_tiers.weights.chunk_parent import (
    Parent,
    ParentAbsent,
    ParentBusy,
    ParentLied,
    ParentStalled,
    ParentWaits,
    check_offer,
)
from cache_tiers.weights.messages import WeightFile


def make_parent() -> Parent:
    return Parent(PeerAddress("10.0.0.1", 70, b"a secret"))


def check(*files: WeightFile, stamp: str = "revision") -> None:
    check_offer(Offer(stamp, list(files), 0, None), ChunkLimits(max_model_bytes=10**13))


def test_names_without_folders_are_taken() -> None:
    check(WeightFile("model.safetensors", 5), WeightFile("…", 0), WeightFile("x", 10**12))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "/",
        "../x",
        "a\0",
        "a\n",
        "\x1b[2J",
        "é" * 128,
        "x" * 256,
        "\ud800",
    ],
)
def test_names_that_lead_elsewhere_or_can_not_be_are_lies(name: str) -> None:
    with pytest.raises(ParentLied, match="a file by the name"):
        check(WeightFile("good", 1), WeightFile(name, 1))


@pytest.mark.parametrize("sizes", [(10**18,), (10**13, 1), (-1, 5)])
def test_sizes_that_can_not_be_are_lies(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ParentLied, match="bytes"):
        check(*(WeightFile(str(number), size) for number, size in enumerate(sizes)))


def test_two_files_by_one_name_are_a_lie() -> None:
    with pytest.raises(ParentLied, match="two files"):
        check(WeightFile("a", 1), WeightFile("a", 2))


def test_a_stamp_is_short() -> None:
    with pytest.raises(ParentLied, match="stamp"):
        check(stamp="x" * 257)


def test_a_parent_that_fails_twice_is_dropped() -> None:
    parent = make_parent()
    are_dropped = []
    for error in (PeerFailed("gone"), ParentStalled("nothing came")):
        parent.failed(error)
        are_dropped.append(parent.is_dropped)
    assert are_dropped == [False, True]
    assert parent.why == "nothing came"


def test_a_lie_is_enough() -> None:
    parent = make_parent()
    parent.failed(ParentLied("a tale"))
    assert parent.is_dropped


@pytest.mark.parametrize("error", [ParentAbsent("none"), ParentBusy("full"), ParentWaits("soon")])
def test_having_nothing_now_is_no_failure(error: PeerFailed) -> None:
    parent = make_parent()
    for _ in range(5):
        parent.failed(error)
    assert not parent.is_dropped


def test_strangers_words_stay_on_one_short_line() -> None:
    parent = make_parent()
    parent.failed(PeerFailed("a\nb\x1b[2J" + "x" * 1000))
    assert parent.why.startswith("a b [2Jx")
    assert len(parent.why) == 300
