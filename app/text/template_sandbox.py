"""Runs chat templates within limits of time and memory: docs/decisions/0006.

Only what is known to be bounded can be written (``app.text.template_syntax``) and called
(``app.text.template_functions``); whatever can grow is charged to the rendering's budget before it
is done, and every turn of a loop looks at the clock. Must not know what a prompt is.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from app.text.render_budget import RenderBudget
from app.text.template_functions import (
    CHARGED_METHODS,
    LIST_FILTERS,
    PLAIN_FILTERS,
    PLAIN_METHODS,
    Charged,
    calculate,
    raise_exception,
    range_,
    round_,
    strftime_now,
)
from app.text.template_syntax import CONCATENATE, WEIGH, GenerationTag, rewritten

_MAX_SOURCE_CHARS = 256 * 1024

_FUNCTIONS = (range_, dict, Namespace, raise_exception, strftime_now)
_CALLERS_VARIABLES = frozenset({"_block_vars", "_loop_vars"})
_LOOP_METHODS = frozenset({"cycle", "changed"})


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A jinja2 environment; used from any thread."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing of the template runs before it has a budget
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=_finalize,
        )
        self._local = threading.local()
        self.globals = {
            "range": range_,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }
        self.filters = self._bounded_filters(self.filters)
        self.tests = {name: self._timed(test) for name, test in self.tests.items()}

    @contextmanager
    def limits(self, input_: Any, *, limit_s: float) -> Iterator[RenderBudget]:
        """Rendering is only possible inside; ``input_`` is what the template will be given."""
        budget = RenderBudget(input_, limit_s=limit_s)
        self._local.charged = Charged(budget)
        try:
            yield budget
        finally:
            del self._local.charged

    @property
    def charged(self) -> Charged:
        """Of the rendering in this thread."""
        charged: Charged = self._local.charged
        return charged

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > _MAX_SOURCE_CHARS:
            raise TemplateSyntaxError(f"it is longer than {_MAX_SOURCE_CHARS} characters", 1)
        return rewritten(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(value, BuiltinMethodType):
            return any(
                attr in names or (kind is str and attr in CHARGED_METHODS)
                for kind, names in PLAIN_METHODS.items()
                if isinstance(obj, kind)
            )
        return bool(super().is_safe_attribute(obj, attr, value))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return None  # ``call`` has its own

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        charged = __self.charged
        if isinstance(__obj, BuiltinMethodType):
            # jinja2 passes its own variables in loops, and takes them away in ``Context.call``.
            own = {key: value for key, value in kwargs.items() if key not in _CALLERS_VARIABLES}
            return _call_method(charged, __obj, args, own)
        is_of_loop = isinstance(__obj, MethodType) and (
            isinstance(__obj.__self__, LoopContext) and __obj.__name__ in _LOOP_METHODS
        )
        is_function = any(__obj is function for function in _FUNCTIONS)
        if is_function or is_of_loop or isinstance(__obj, Macro | LoopContext | Undefined):
            result = __context.call(__obj, *args, **kwargs)
            return charged.weigh(result) if __obj is dict else result
        raise SecurityError("it calls what is not a function of chat templates")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        charged = self.charged
        if operator in ("*", "**") and _are_numbers(left, right):
            return calculate(operator, left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return charged.add(left, right)
        if operator == "+" and isinstance(left, list | tuple):
            return charged.weigh(left + right)
        if operator == "*" and isinstance(left, int):
            left, right = right, left
        if operator == "*" and isinstance(right, int) and isinstance(left, str | list | tuple):
            return charged.repeat(left, right)
        if operator == "%" and isinstance(left, str):
            return charged.percent(left, right)
        return self.binop_table[operator](left, right)  # of numbers, or it raises

    def _bounded_filters(self, known: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
        timed = {name: self._timed(known[name]) for name in PLAIN_FILTERS}
        weighed = {name: self._weighed(known[name]) for name in LIST_FILTERS}
        charged = {
            name: self._charged(method)
            for name, method in {
                CONCATENATE: Charged.join,
                WEIGH: Charged.weigh,
                "format": Charged.percent_all,
                "indent": Charged.indent,
                "replace": Charged.replace,
                "safe": Charged.show,
                "string": Charged.show,
                "tojson": Charged.to_json,
            }.items()
        }
        return {**timed, **weighed, **charged, "join": self._join, "round": round_}

    def _charged(self, method: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: method(self.charged, *args, **kwargs)

    def _timed(self, function: Any) -> Callable[..., Any]:
        @wraps(function)  # with what jinja2 notes on it
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.charged.check_time()
            return function(*args, **kwargs)

        return timed

    def _weighed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def weighed(*args: Any, **kwargs: Any) -> Any:
            charged = self.charged
            bounded = [
                charged.list_characters(arg) if isinstance(arg, str) and not position else arg
                for position, arg in enumerate(args)
            ]
            result = function(*bounded, **kwargs)
            return charged.weigh(result) if isinstance(result, list) else result

        return weighed

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            values = (self.getitem(value, attribute) for value in values)
        return self.charged.join(values, d)


@pass_context  # jinja2 would call it for constants while it compiles, otherwise
def _finalize(context: Context, value: Any) -> str:
    assert isinstance(context.environment, TemplateSandbox)
    return context.environment.charged.show(value)


def _call_method(
    charged: Charged, method: BuiltinMethodType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    value, name = method.__self__, method.__name__
    if isinstance(value, str) and name in CHARGED_METHODS:
        if name == "join":
            (values,) = args
            return charged.join(values, value)
        if name == "replace":
            return charged.replace(value, *args)
        if name == "format":
            return charged.format(value, *args, **kwargs)
        return charged.split(value, method, *args, **kwargs)
    if any(isinstance(value, kind) and name in names for kind, names in PLAIN_METHODS.items()):
        return method(*args, **kwargs)
    raise SecurityError("it calls what is not a function of chat templates")


def _are_numbers(left: object, right: object) -> bool:
    return isinstance(left, int | float) and isinstance(right, int | float)
