"""How much time and memory the rendering of one chat template may take. Must not know templates."""

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import Undefined

_NODE_BYTES = 16
"""The least that a value in a list or mapping takes."""

_MAX_DEPTH = 100

_MIN_VALUE_BYTES = 1 << 20
_MIN_TOTAL_BYTES = 128 << 20
_EXPECTED_S = 0.01
_EXPECTED_S_PER_INPUT_BYTE = 1e-6
"""Ten times what the templates in use take."""

_VALUE_PER_INPUT = 4
_TOTAL_PER_INPUT = 16
"""A rendered conversation is about as long as its messages; each of them may pass through a few
filters, and its JSON may be longer.
"""


class TemplateLimitError(Exception):
    """The template wants more than it may have."""


class RenderBudget:
    """Of one rendering. Charged before memory is taken."""

    def __init__(self, input_: Any, *, limit_s: float) -> None:
        """``input_``: what the template is given; bigger conversations may take more memory."""
        num_input_bytes = _num_bytes_of(input_, max_bytes=None)
        self._max_value_bytes = _MIN_VALUE_BYTES + _VALUE_PER_INPUT * num_input_bytes
        self._num_left_bytes = _MIN_TOTAL_BYTES + _TOTAL_PER_INPUT * num_input_bytes
        self.expected_s = _EXPECTED_S + _EXPECTED_S_PER_INPUT_BYTE * num_input_bytes
        """Most processor time that an ordinary template takes."""
        self._limit_s = limit_s
        self._started_s = time.thread_time()
        self._deadline_s = time.monotonic() + limit_s

    @property
    def used_s(self) -> float:
        """Of this thread's processor time: a busy machine is not the template's fault."""
        return time.thread_time() - self._started_s

    def check_time(self) -> None:
        if time.monotonic() > self._deadline_s and self.used_s > self._limit_s:
            raise TemplateLimitError(f"it takes longer than {self._limit_s:g} s")

    def charge(self, num_bytes: int) -> None:
        """For a value that is about to be made; looks at the clock, too."""
        self.check_time()
        self._num_left_bytes -= num_bytes
        if num_bytes > self._max_value_bytes or self._num_left_bytes < 0:
            raise TemplateLimitError("it makes too much text")

    def charge_value(self, value: Any) -> int:
        """For ``value``, whatever it holds; returns its size."""
        num_bytes = _num_bytes_of(value, max_bytes=self._max_value_bytes)
        self.charge(num_bytes)
        return num_bytes


def text_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


def _num_bytes_of(value: Any, *, max_bytes: int | None) -> int:
    """What ``value`` takes if nothing in it were shared: so much it is to write, or to compare.

    Level by level, so that a small value that refers to itself many times ends early.
    """
    num_bytes = depth = 0
    level = [value]
    while level:
        depth += 1
        num_bytes += _NODE_BYTES * len(level)
        if depth > _MAX_DEPTH:
            raise TemplateLimitError(f"it nests values more than {_MAX_DEPTH} deep")
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                num_bytes += text_bytes(item)
            elif isinstance(item, Mapping):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list | tuple | KeysView | ValuesView | ItemsView):
                below += item
            elif not (item is None or isinstance(item, int | float | range | Undefined)):
                raise TemplateLimitError(f"it treats a {type(item).__name__} as a value")
        if max_bytes is not None and num_bytes + _NODE_BYTES * len(below) > max_bytes:
            raise TemplateLimitError("it makes too much text")
        level = below
    return num_bytes
