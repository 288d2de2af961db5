"""Who may not move: arena slots that somebody reads or waits for. Must not know what is in them."""


class Leases:
    """Counts, by arena offset; a slot may be leased several times."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._entries: dict[int, int] = {}

    def __len__(self) -> int:
        """Leases, not slots."""
        return sum(self._counts.values())

    def take(self, offset: int, entry: int) -> None:
        self._counts[offset] = self._counts.get(offset, 0) + 1
        self._entries[offset] = entry

    def drop(self, offset: int) -> int | None:
        """End one; the block, if it was the last of it."""
        count = self._counts.get(offset, 0)
        assert count > 0, f"the slot at {offset} is not leased"
        if count > 1:
            self._counts[offset] = count - 1
            return None
        del self._counts[offset]
        return self._entries.pop(offset)

    def drop_all(self, offset: int) -> None:
        """What those who wait for the slot will never get."""
        self._counts.pop(offset, None)
        self._entries.pop(offset, None)

    def is_leased(self, offset: int) -> bool:
        return offset in self._counts

    def items(self) -> list[tuple[int, int]]:
        """Leased offsets and the blocks in them."""
        return list(self._entries.items())
