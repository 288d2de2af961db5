"""Ids of requests: made by the gateway, and shaped as clients know them."""

import re

import pytest

from app.record import create_record


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("/v1/chat/completions", "chatcmpl"),
        ("/chat/completions", "chatcmpl"),
        ("/v1/completions", "cmpl"),
        ("/completions", "cmpl"),
        ("/v1/models", "chatcmpl"),
    ],
)
def test_an_id_begins_as_openais_do_for_the_route(path: str, prefix: str) -> None:
    record = create_record({"method": "POST", "path": path})
    assert re.fullmatch(prefix + "-[0-9a-f]{24}", record.request_id)
    assert record.method == "POST"


def test_ids_are_unique() -> None:
    scope = {"method": "POST", "path": "/v1/completions"}
    assert len({create_record(scope).request_id for _ in range(100)}) == 100
