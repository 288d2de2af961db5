"""Ways in which a file arrives damaged or was forged, for property tests of its reader."""

from dataclasses import dataclass

from hypothesis import strategies as st

TELLING_NUMBERS = (0, 1, 2, 3, 7, 31, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**60, 2**63, 2**64 - 1)


@dataclass(frozen=True, slots=True)
class Damage:
    """Apply with ``to``."""

    edits: tuple[tuple[int, bytes], ...]
    kept_share: float

    def to(self, whole: bytes) -> bytes:
        damaged = bytearray(whole)
        for position, content in self.edits:
            damaged[position : position + len(content)] = content
        return bytes(damaged[: int(len(damaged) * self.kept_share)])


def damages(num_bytes: int) -> st.SearchStrategy[Damage]:
    """Bytes overwritten, numbers replaced by telling ones, the end cut off.

    Edits fall into the first ``num_bytes`` bytes, where a file says what it holds.
    """
    numbers = st.builds(
        lambda number, width: (number % 2 ** (8 * width)).to_bytes(width, "little"),
        st.sampled_from(TELLING_NUMBERS),
        st.sampled_from((4, 8)),
    )
    contents = st.one_of(st.binary(min_size=1, max_size=8), numbers)
    edits = st.lists(st.tuples(st.integers(0, num_bytes - 1), contents), min_size=1, max_size=3)
    shares = st.one_of(st.just(1.0), st.floats(0, 1))
    return st.builds(Damage, edits.map(tuple), shares)
