"""Every chunk is brought once, whatever comes between, and never by whom has spoiled it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile
from cache_tiers.weights.missing_chunks import ChunkRef, MissingChunks

DIGEST = bytes(16)


@contextmanager
def files(*num_chunks: int) -> Iterator[list[ArrivingFile]]:
    """Whose last chunks have one byte."""
    made = [
        ArrivingFile.in_memory(WeightFile(str(number), max(0, (num - 1) * CHUNK_BYTES + 1)))
        for number, num in enumerate(num_chunks)
    ]
    yield made
    for file in made:
        file.close()


def positions(refs: Sequence[ChunkRef]) -> list[tuple[str, int]]:
    return [(ref.file.file.name, ref.chunk_index) for ref in refs]


def test_chunks_are_claimed_in_order_and_each_once() -> None:
    with files(2, 0, 1) as made:
        missing = MissingChunks(made)
        refs = [ref for _ in range(4) if (ref := missing.claim("a parent"))]
        assert positions(refs) == [("0", 0), ("0", 1), ("2", 0)]
        assert missing.num_left_bytes == CHUNK_BYTES + 2
        for ref in refs:
            missing.arrived(ref, DIGEST)
        assert missing.is_done
        assert missing.num_left_bytes == 0
        assert all(file.is_whole for file in made)


def test_what_is_there_already_is_not_missing() -> None:
    with files(3) as made:
        made[0].mark(1)
        missing = MissingChunks(made)
        assert missing.num_left_bytes == CHUNK_BYTES + 1
        assert missing.num_unclaimed == 2


def test_what_is_given_back_is_claimed_next_and_in_order() -> None:
    with files(4) as made:
        missing = MissingChunks(made)
        refs = [ref for _ in range(3) if (ref := missing.claim("a parent"))]
        missing.give_back(refs[:2][::-1])
        again = [ref for _ in range(3) if (ref := missing.claim("a parent"))]
        assert positions(again) == [("0", 0), ("0", 1), ("0", 3)]


def test_who_spoiled_a_chunk_is_asked_for_it_only_when_forgiven() -> None:
    with files(1) as made:
        missing = MissingChunks(made)
        ref = missing.claim("one")
        assert ref is not None
        assert missing.spoiled(ref, "one") == 1
        assert missing.claim("one") is None
        assert not missing.has_for("one")
        assert missing.has_for("another")
        missing.forgive()
        assert missing.claim("one") == ref


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["claim", "give", "spoil", "arrive"]))
    )
)
def test_no_chunk_is_lost_or_claimed_twice(steps: list[tuple[str, str]]) -> None:
    with files(3, 2) as made:
        missing = MissingChunks(made)
        claimed: list[ChunkRef] = []
        arrived: list[ChunkRef] = []
        for parent, step in steps:
            if step == "claim":
                if (ref := missing.claim(parent)) is not None:
                    assert ref not in claimed
                    assert ref not in arrived
                    claimed.append(ref)
            elif claimed and step == "give":
                missing.give_back([claimed.pop(0)])
            elif claimed and step == "spoil":
                missing.spoiled(claimed.pop(0), parent)
            elif claimed:
                arrived.append(claimed.pop(0))
                missing.arrived(arrived[-1], DIGEST)
            assert missing.num_unclaimed + len(claimed) + len(arrived) == 5
            assert missing.num_brought_bytes == sum(ref.num_bytes for ref in arrived)
            assert missing.is_done == (len(arrived) == 5)


def test_what_a_parent_is_known_to_have_is_claimed_before_what_it_waits_for() -> None:
    with files(2, 3) as made:
        missing = MissingChunks(made)
        known = {"0": 0, "1": 2}
        refs = [ref for _ in range(3) if (ref := missing.claim("a parent", known))]
        assert positions(refs) == [("1", 0), ("1", 1), ("0", 0)]
        missing.give_back(refs[2:])
        assert missing.spoiled(refs[0], "a parent") == 1
        again = missing.claim("a parent", known)
        assert again is not None
        assert positions([again]) == [("0", 0)], "never what it has spoiled"
