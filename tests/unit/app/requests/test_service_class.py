"""How urgent a request is, as clients say it."""

import pytest

from app.errors import InvalidRequestError
from app.requests.service_class import choose_class
from engine.messages import ServiceClass

INTERACTIVE, STANDARD, BATCH = ServiceClass


def headers(value: str | None) -> list[tuple[bytes, bytes]]:
    others = [(b"content-type", b"application/json")]
    return others if value is None else [*others, (b"x-headwater-class", value.encode())]


@pytest.mark.parametrize(
    ("tier", "header", "expected"),
    [
        (None, None, (STANDARD, None)),
        ("auto", None, (STANDARD, "default")),
        ("scale", None, (STANDARD, "default")),
        ("default", None, (STANDARD, "default")),
        ("priority", None, (INTERACTIVE, "priority")),
        ("fast", None, (INTERACTIVE, "priority")),
        ("flex", None, (BATCH, "flex")),
        (None, "batch", (BATCH, None)),
        (None, " Interactive ", (INTERACTIVE, None)),
        ("auto", "batch", (BATCH, "flex")),
        ("flex", "batch", (BATCH, "flex")),
    ],
)
def test_tier_and_header(
    tier: str | None, header: str | None, expected: tuple[ServiceClass, str | None]
) -> None:
    assert choose_class(tier, headers(header), "standard") == expected  # type: ignore[arg-type]


def test_the_configured_class_is_for_those_that_ask_for_none() -> None:
    assert choose_class(None, headers(None), "batch").service_class is BATCH
    assert choose_class("auto", headers(None), "batch") == (BATCH, "flex")
    assert choose_class("default", headers(None), "batch").service_class is STANDARD


@pytest.mark.parametrize(("tier", "header"), [("priority", "batch"), ("flex", "standard")])
def test_contradictions_are_refused(tier: str, header: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"x-headwater-class' says {header}"):
        choose_class(tier, headers(header), "standard")  # type: ignore[arg-type]


@pytest.mark.parametrize("header", ["", "urgent", "0", "INTERACTIVE, batch", "\xff"])
def test_unknown_headers_are_refused_and_the_choices_named(header: str) -> None:
    with pytest.raises(InvalidRequestError, match="interactive, standard, batch"):
        choose_class(None, headers(header), "standard")


def test_classes_delay_by_what_lets_nobody_wait_for_ever() -> None:
    assert [kind.delay_s for kind in ServiceClass] == [0.0, 10.0, 60.0]
