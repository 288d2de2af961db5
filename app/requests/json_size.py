"""How much JSON a field may hold that is passed on as it is, and read value by value later."""

from collections.abc import Iterable, Sequence
from typing import Any


def is_larger(values: Sequence[object], *, max_values: int, max_depth: int) -> bool:
    """Whether the containers in ``values`` hold more in all, or nest deeper. Level by level, so
    that it ends early and needs no recursion.
    """
    level = _containers(values)
    num_values = depth = 0
    while level:
        num_values += sum(map(len, level))
        depth += 1
        if num_values > max_values or depth > max_depth:
            return True
        level = _containers(
            child for item in level for child in (item.values() if isinstance(item, dict) else item)
        )
    return False


def _containers(values: Iterable[object]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, dict | list)]
