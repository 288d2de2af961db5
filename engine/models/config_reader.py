"""Reads the keys of a config.json that nobody vouches for.

Every value is checked for its type and for bounds that no real model comes near, so that whatever
follows is bounded work; a bad one raises `CheckpointError` and names its key. Imports no torch and
knows no model.
"""

from collections.abc import Collection, Mapping
from typing import Any

from engine.errors import CheckpointError

MAX_LAYERS = 1024
MAX_SIZE = 2**28
"""Of widths, head counts, vocabularies and contexts."""
MAX_NUMBER = 1e15
_MAX_SHOWN = 60


class ConfigReader:
    """One JSON object of a config.json; ``path`` is where it stands there."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigReader":
        """A reader that finds ``defaults`` where a key is absent or null."""
        present = {key: value for key, value in self._values.items() if value is not None}
        return ConfigReader({**defaults, **present}, self._path)

    def without(self, *keys: str) -> "ConfigReader":
        """A reader that doesn't find ``keys``."""
        kept = {key: value for key, value in self._values.items() if key not in keys}
        return ConfigReader(kept, self._path)

    def has(self, key: str) -> bool:
        """Whether the key stands there with a value other than null."""
        return self._values.get(key) is not None

    def size(self, key: str, default: int | None = None, *, maximum: int = MAX_SIZE) -> int:
        """A positive integer; the key must stand there unless there is a default."""
        value = self._get(key, default)
        # bool is a subclass of int, and no size.
        if type(value) is not int or not 1 <= value <= maximum:
            raise self.error(key, f"must be an integer from 1 to {maximum}, not {_show(value)}")
        return value

    def count(self, key: str, default: int) -> int:
        """An integer that may be 0."""
        value = self._values.get(key)
        return 0 if type(value) is int and value == 0 else self.size(key, default)

    def optional_size(self, key: str, default: int | None = None) -> int | None:
        """Like ``size``, but null means none; ``default`` stands in for a key that is absent."""
        if key not in self._values:
            return default
        return self.size(key) if self.has(key) else None

    def number(
        self, key: str, default: float | None = None, *, above: float = 0.0, at_most: float = 0.0
    ) -> float:
        """A finite number above a bound, with a limit of ``MAX_NUMBER`` unless another is given."""
        value = self._get(key, default)
        limit = at_most or MAX_NUMBER
        # An integer may be too large for a float, so it is compared before it becomes one.
        if type(value) not in (int, float) or not above < value <= limit:
            raise self.error(
                key, f"must be a number above {above:g} and at most {limit:g}, not {_show(value)}"
            )
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {_show(value)}")
        return value

    def choice(self, key: str, default: str, *, known: Collection[str]) -> str:
        """One of the words that the engine implements."""
        value = self._get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.error(key, f"{_show(value)} is not supported, only {_list(known)}")
        return value

    def words(self, key: str, count: int, *, known: Collection[str]) -> list[str] | None:
        """A list of exactly ``count`` of the ``known`` words; None if the key is absent."""
        if not self.has(key):
            return None
        values = self._values[key]
        if not isinstance(values, list) or len(values) != count:
            raise self.error(key, f"must be a list of {count} words, one per layer")
        for value in values:
            if not isinstance(value, str) or value not in known:
                raise self.error(key, f"{_show(value)} is not supported, only {_list(known)}")
        return values

    def section(self, key: str) -> "ConfigReader":
        """The object under ``key``; an empty one if it is absent."""
        values = self._get(key, {})
        if not isinstance(values, dict):
            raise self.error(key, f"must be an object, not {_show(values)}")
        return ConfigReader(values, f"{self._path}{key}.")

    def has_section(self, key: str) -> bool:
        return isinstance(self._values.get(key), dict)

    def refuse(self, key: str, reason: str) -> None:
        """Raise if ``key`` is set to anything but null, false or nothing."""
        if self._values.get(key):
            raise self.error(key, reason)

    def error(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"config.json: {self._path}{key} {problem}.")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value


def _show(value: object) -> str:
    text = (
        repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    )
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _list(words: Collection[str]) -> str:
    return ", ".join(map(repr, words))
