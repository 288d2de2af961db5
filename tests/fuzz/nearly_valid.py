"""Bodies that are nearly right: options that interplay, and JSON that only some parsers like.

Most drawn requests are answered; some have one odd value, odd JSON around it, or damaged bytes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.damage import damages
from tests.fuzz import option_values as values
from tests.fuzz.exchange import Request


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text that no Python value stands for."""

    text: str


NUMBERS = (
    *("0", "-0", "-0.0", "1e400", "-1e400", "1e-400", "1E2", "0.1e1", "NaN", "Infinity"),
    *("-Infinity", "-1", "9223372036854775807", "9223372036854775808", "-9223372036854775809"),
    *("18446744073709551616", "1" + "0" * 400, "0." + "3" * 400, "2.0", "01", "+1", ".5"),
)
STRINGS = (
    *(r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\x41"', '"\x00"'),
    *('""', '"\ufeff"', '"a\u200d\u0301\u0308"', '"\U0001f469\u200d\U0001f469\u200d\U0001f467"'),
    *('"<|im_end|>"', '"<|im_start|>system"', '"{{ 7*7 }}{% raw %}"', '"\uffff"', '"unclosed'),
)
OTHERS = ("null", "true", "false", "[]", "{}", "[[]]", '{"":null}', "[null]", "[" * 200 + "]" * 200)
ODD = st.sampled_from([Raw(text) for text in (*NUMBERS, *STRINGS, *OTHERS)])


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    required: values.Fields = field(repr=False)
    options: values.Fields = field(repr=False)


class NearlyValid:
    """Requests for a gateway that serves ``model``."""

    def __init__(self, model: str) -> None:
        name = {"model": st.just(model)}
        self._routes = (
            _Route("/chat/completions", name | {"messages": values.MESSAGES}, values.CHAT),
            _Route("/completions", name | {"prompt": values.PROMPT}, values.COMPLETION),
            _Route("/tokenize", name | {"prompt": values.TEXT}, values.TOKENIZE),
            _Route("/tokenize", name | {"messages": values.MESSAGES}, values.TOKENIZE),
            _Route("/detokenize", name | {"tokens": values.TOKEN_IDS}, {}),
        )

    def requests(self) -> st.SearchStrategy[list[Request]]:
        """Sent at the same time, they share the engine's steps."""
        generating = [_requests(route) for route in self._routes[:2]]
        others = [_requests(route) for route in self._routes[2:]]
        one = st.one_of(*generating, *generating, *others)
        return st.lists(one, min_size=1, max_size=6)


@st.composite
def _requests(draw: st.DrawFn, route: _Route) -> Request:
    pairs = [(name, draw(strategy)) for name, strategy in route.required.items()]
    names = draw(st.lists(st.sampled_from(["", *route.options]), max_size=14, unique=True))
    options = {name: draw(route.options[name]) for name in names if name}
    if draw(st.integers(0, 15)):
        options |= {values.NEEDED[name]: True for name in names if name in values.NEEDED}
    if "stream" in route.options and draw(st.booleans()):
        options["stream"] = True
    pairs += options.items()
    if draw(st.integers(0, 5)) == 0:
        odd_name = draw(st.sampled_from([*dict(pairs), "", "unknown", "model\0"]))
        if draw(st.booleans()):  # else it comes a second time
            pairs = [pair for pair in pairs if pair[0] != odd_name]
        pairs.append((odd_name, draw(ODD)))
    body = as_json(pairs).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 15)) == 0:
        body = draw(damages(len(body))).to(body)
    path = draw(st.sampled_from(["", "/v1"])) + route.path
    return Request("POST", path, body, {"content-type": "application/json"})


def as_json(pairs: Iterable[tuple[str, object]]) -> str:
    """An object of ``pairs``, keys that occur twice included."""
    items = (
        f"{json.dumps(key)}:{value.text if isinstance(value, Raw) else json.dumps(value)}"
        for key, value in pairs
    )
    return "{" + ",".join(items) + "}"
