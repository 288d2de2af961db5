"""What all request models share: how they validate, and how a refusal names its field.

Strict: true is not 1, and "1" is not 1. Unknown fields are ignored, as clients send many; null is
the same as absent. Must not know what any field means. pydantic stops here and in the models.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from app.errors import InvalidRequestError


class Border(BaseModel):
    """Every list of something must fail fast, or a megabyte of wrong items makes gigabytes of
    errors.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    reasons: ClassVar[Mapping[str, str]] = {}
    """What is allowed, by the path of a field without positions, where pydantic's words for one of
    several alternatives would mislead.
    """


Model = TypeVar("Model", bound=Border)

_POSITION = re.compile(r"\[\d+\]")

_REASONS = {
    "bool_type": "it must be true or false",
    "dict_type": "it must be an object",
    "int_type": "it must be an integer from -2^63 to 2^64 - 1, written without a decimal point",
    "list_type": "it must be an array",
    "model_type": "it must be an object",
}
"""By pydantic's kind of error, where its own words are of Python and not of JSON."""


def validated(model: type[Model], body: Mapping[str, Any]) -> Model:
    """``body`` as ``model``; raises ``InvalidRequestError`` with the first offending field as its
    ``param``.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _param(first["loc"], body, is_missing=first["type"] == "missing")
        reason = model.reasons.get(_POSITION.sub("", param)) or _REASONS.get(first["type"])
        if reason is None:
            reason = first["msg"][:1].lower() + first["msg"][1:]
        raise invalid(param, reason) from None


def invalid(param: str, reason: str) -> InvalidRequestError:
    """``reason`` says what is allowed."""
    return InvalidRequestError(f"Invalid value for '{param}': {reason}.", param=param)


def unsupported(param: str, reason: str) -> InvalidRequestError:
    """Of a value that is understood, but would change the answer in a way not offered here."""
    return InvalidRequestError(f"Unsupported value for '{param}': {reason}.", param=param)


def _param(location: Sequence[int | str], body: Any, *, is_missing: bool) -> str:
    """``messages[0].content``: the steps of ``location`` through the body; pydantic adds others."""
    path = ""
    value = body
    for depth, step in enumerate(location):
        is_absent = is_missing and depth == len(location) - 1
        if isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                path += f"[{step}]"
                value = value[step]
        elif isinstance(value, dict) and (step in value or is_absent):
            path += f".{step}" if path else step
            value = value.get(step)
    return path
