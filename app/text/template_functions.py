"""The filters, methods and functions that chat templates may call, each bounded.

``Charged`` holds those whose result can be larger than what they are given: they charge a
``RenderBudget`` first. Names and behaviour are jinja2's and Python's; ``tojson`` and
``strftime_now`` are those of transformers. Must not know where a template comes from.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError

from app.text.render_budget import RenderBudget, TemplateLimitError, text_bytes

MAX_RANGE = 100_000

PLAIN_FILTERS = frozenset(
    {
        *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "first", "float"),
        *("int", "items", "last", "length", "lower", "map", "max", "min", "reject", "rejectattr"),
        *("select", "selectattr", "title", "trim", "upper", "wordcount"),
    }
)
"""jinja2's own: what they return is no larger than what they are given, or is lazy."""

LIST_FILTERS = frozenset({"groupby", "list", "reverse", "sort", "unique"})
"""jinja2's own; a lazy argument may have become large."""

PLAIN_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        {
            *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum"),
            *("isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
            *("istitle", "isupper", "lower", "lstrip", "partition", "removeprefix"),
            *("removesuffix", "rfind", "rindex", "rpartition", "rstrip", "startswith", "strip"),
            *("swapcase", "title", "upper"),
        }
    ),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
}

CHARGED_METHODS = frozenset({"format", "join", "replace", "rsplit", "split", "splitlines"})
"""Of texts; see ``Charged``."""

_MAX_INDENT = 16
_MAX_FACTOR = 10**15
_PIECE_BYTES = 64
"""What a text takes apart from its characters."""

_SIMPLE_FIELD = re.compile(r"\{[A-Za-z0-9_]*\}|\{\{|\}\}")
_SIMPLE_CONVERSION = re.compile(r"%[sd%]")
_SIMPLE_TIME = re.compile(r"(?:[^%]|%-?[A-Za-z%])*")


class Charged:
    """Bound to one rendering."""

    def __init__(self, budget: RenderBudget) -> None:
        self._budget = budget

    def show(self, value: Any) -> str:
        """``value`` as text, as ``{{ value }}`` writes it."""
        if isinstance(value, str):
            self._budget.charge(text_bytes(value) + _PIECE_BYTES)
            return str(value)
        self._budget.charge_value(value)
        return str(value)

    def weigh(self, value: Any) -> Any:
        self._budget.charge_value(value)
        return value

    def check_time(self) -> None:
        self._budget.check_time()

    def repeat(self, value: Any, factor: int) -> Any:
        """``value``: a text or a list."""
        self._budget.charge(self._budget.charge_value(value) * factor)
        return value * factor

    def add(self, left: str, right: str) -> str:
        self._budget.charge(text_bytes(left) + text_bytes(right) + _PIECE_BYTES)
        return left + right

    def list_characters(self, text: str) -> list[str]:
        self._budget.charge(len(text) * _PIECE_BYTES)
        return list(text)

    def join(self, values: Iterable[Any], separator: str = "") -> str:
        texts: list[str] = []
        for value in values:
            text = self.show(value)
            self._budget.charge(text_bytes(separator))
            texts.append(text)
        return separator.join(texts)

    def replace(self, text: str, old: str, new: str, count: int | None = None) -> str:
        text = text if isinstance(text, str) else self.show(text)
        num_found = text.count(old)
        num_replaced = num_found if count is None or count < 0 else min(count, num_found)
        self._budget.charge(text_bytes(text) + num_replaced * text_bytes(new))
        return text.replace(old, new, num_replaced)

    def split(self, text: str, split: Callable[..., list[str]], *args: Any, **kwargs: Any) -> Any:
        """``split``: the method of ``text`` that does it."""
        separator = kwargs.get("sep", args[0] if args else None)
        num_pieces = len(text) // 2
        if isinstance(separator, str) and separator:
            num_pieces = text.count(separator)
        limit = kwargs.get("maxsplit", args[1] if len(args) > 1 else -1)
        if isinstance(limit, int) and limit >= 0:
            num_pieces = min(num_pieces, limit)
        self._budget.charge(text_bytes(text) + (num_pieces + 1) * _PIECE_BYTES)
        return split(*args, **kwargs)

    def format(self, pattern: str, *args: Any, **kwargs: Any) -> str:
        """``str.format`` with plain fields only: widths and attributes are refused."""
        rest = _SIMPLE_FIELD.sub("", pattern)
        if "{" in rest or "}" in rest:
            raise TemplateLimitError("it formats with more than plain {} fields")
        return self._formatted(pattern, args, kwargs, pattern.format)

    def percent(self, pattern: str, args: Any) -> str:
        """``pattern % args`` with plain conversions only."""
        if "%" in _SIMPLE_CONVERSION.sub("", pattern) or isinstance(args, Mapping):
            raise TemplateLimitError("it formats with more than plain %s fields")
        values = args if isinstance(args, tuple) else (args,)
        return self._formatted(pattern, values, {}, lambda *items: pattern % items)

    def percent_all(self, pattern: str, *args: Any) -> str:
        """The filter ``format``."""
        return self.percent(pattern, args)

    def _formatted(
        self,
        pattern: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        format_: Callable[..., str],
    ) -> str:
        largest = max(
            (self._budget.charge_value(value) for value in (*args, *kwargs.values())), default=0
        )
        num_fields = pattern.count("{") + pattern.count("%")
        self._budget.charge(text_bytes(pattern) + num_fields * largest)
        return format_(*args, **kwargs)

    def indent(
        self, text: str, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        prefix = width if isinstance(width, str) else " " * min(width, _MAX_INDENT + 1)
        if len(prefix) > _MAX_INDENT:
            raise TemplateLimitError(f"it indents by more than {_MAX_INDENT}")
        lines = text.splitlines() or [""]
        self._budget.charge(text_bytes(text) + len(lines) * (_PIECE_BYTES + len(prefix)))
        indented = [prefix + line if line or blank else line for line in lines[1:]]
        begin = prefix + lines[0] if first else lines[0]
        return "\n".join([begin, *indented])

    def to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """jinja2's own filter escapes for HTML, which a model was not trained on."""
        if (indent or 0) > _MAX_INDENT or any(len(part) > _MAX_INDENT for part in separators or ()):
            raise TemplateLimitError(f"it indents by more than {_MAX_INDENT}")
        self._budget.charge_value(value)
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        self._budget.charge(text_bytes(text))
        return text


def round_(value: float, precision: int = 0, method: str = "common") -> float:
    """jinja2's own computes 10 to the power of any ``precision``."""
    if abs(precision) > 15:
        raise TemplateLimitError("it rounds to more than 15 digits")
    if method == "common":
        return round(value, precision)
    scaled = value * 10**precision
    whole = int(scaled // 1) if method == "floor" else -int(-scaled // 1)
    return float(whole / 10**precision)


def calculate(operator: str, left: float, right: float) -> float:
    """``*`` and ``**`` of numbers that stay small."""
    if operator == "*":
        is_small = abs(left) <= _MAX_FACTOR and abs(right) <= _MAX_FACTOR
    else:
        is_small = abs(left) <= 1000 and abs(right) <= 15
    if not is_small:
        raise TemplateLimitError("it calculates with large numbers")
    result: float = left * right if operator == "*" else left**right
    return result


def range_(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise TemplateLimitError(f"it counts through more than {MAX_RANGE} numbers")
    return numbers


def raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


def strftime_now(format_: str) -> str:
    if len(format_) > 100 or not _SIMPLE_TIME.fullmatch(format_):
        raise TemplateLimitError("it writes the time in an unusual way")
    return datetime.now().astimezone().strftime(format_)
