"""How urgent a request is, as clients say it: OpenAI's ``service_tier``, or our header for clients
that can't set fields of the body.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from app.errors import InvalidRequestError
from app.requests.border import invalid
from engine.messages import ServiceClass

HEADER = "x-headwater-class"

ServiceTier = Literal["auto", "default", "flex", "priority", "fast", "scale"]
"""OpenAI's. ``auto`` and ``scale`` leave it to the server."""

ClassName = Literal["interactive", "standard", "batch"]

_CLASS_OF_TIER = {
    "priority": ServiceClass.INTERACTIVE,
    "fast": ServiceClass.INTERACTIVE,
    "default": ServiceClass.STANDARD,
    "flex": ServiceClass.BATCH,
}
_TIER_OF_CLASS = {
    ServiceClass.INTERACTIVE: "priority",
    ServiceClass.STANDARD: "default",
    ServiceClass.BATCH: "flex",
}


class ChosenClass(NamedTuple):
    """What a request is served as."""

    service_class: ServiceClass
    shown_tier: str | None
    """The tier that the answer names: only if the client asked for one."""


def class_named(name: ClassName) -> ServiceClass:
    return ServiceClass[name.upper()]


def choose_class(
    tier: ServiceTier | None, headers: Iterable[tuple[bytes, bytes]], default: ClassName
) -> ChosenClass:
    """``headers`` with lower-case names, as in an ASGI scope.

    Raises ``InvalidRequestError`` for an unknown class, and where both say different things.
    """
    of_tier = None if tier is None else _CLASS_OF_TIER.get(tier)
    header = dict(headers).get(HEADER.encode())
    of_header = None if header is None else _parse_header(header)
    if of_tier is not None and of_header is not None and of_tier is not of_header:
        raise invalid("service_tier", f"the header '{HEADER}' says {of_header.name.lower()}")
    chosen = of_tier if of_tier is not None else of_header
    if chosen is None:
        chosen = class_named(default)
    return ChosenClass(chosen, None if tier is None else _TIER_OF_CLASS[chosen])


def _parse_header(value: bytes) -> ServiceClass:
    names = [kind.name.lower() for kind in ServiceClass]
    name = value.decode("latin-1").strip().lower()
    if name not in names:
        raise InvalidRequestError(
            f"The header '{HEADER}' must be one of {', '.join(names)}.", param=HEADER
        )
    return ServiceClass[name.upper()]
