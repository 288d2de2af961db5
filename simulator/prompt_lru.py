"""The blocks of recent prompts, of which those that were used longest ago are dropped first. Must
not know who holds them, or why.

Prompts are kept in the order of their use, not their blocks: a use is one entry, however long the
prompt, and what its blocks are worth is found out when it is the oldest. A block that a later
prompt used, too, stays on.
"""

from collections import deque
from collections.abc import Iterator, Sequence


class PromptLru:
    """Keys of blocks; within a prompt the first one counts as used last."""

    __slots__ = ("_num_uses", "_oldest", "_oldest_use", "_prompts", "_use_of")

    def __init__(self) -> None:
        self._use_of: dict[bytes, int] = {}
        """The last one of each key."""
        self._num_uses = 0
        self._prompts: deque[tuple[int, Sequence[bytes]]] = deque()
        self._oldest: list[bytes] = []
        """What is left of the prompt that is being dropped."""
        self._oldest_use = 0

    def __len__(self) -> int:
        return len(self._use_of)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._use_of)

    def use(self, keys: Sequence[bytes]) -> list[bytes]:
        """All of ``keys`` are in it afterwards. Returns those that were not."""
        use_of = self._use_of
        new = [key for key in keys if key not in use_of]
        self._num_uses += 1
        use_of.update(dict.fromkeys(keys, self._num_uses))
        self._prompts.append((self._num_uses, keys))
        return new

    def trim(self, max_keys: int) -> list[bytes]:
        """Drop all but ``max_keys``. Returns what was dropped, in that order."""
        use_of, oldest = self._use_of, self._oldest
        dropped = []
        while len(use_of) > max_keys:
            while not oldest:
                self._oldest_use, keys = self._prompts.popleft()
                oldest.extend(keys)
            key = oldest.pop()
            if use_of.get(key) == self._oldest_use:
                del use_of[key]
                dropped.append(key)
        return dropped

    def clear(self) -> None:
        self._use_of.clear()
        self._prompts.clear()
        self._oldest.clear()
