"""Engine addresses on their way through Serve."""

import json
from dataclasses import replace

import pytest

from app.fleet_metrics import ScrapeTarget
from deployments.advertisement import Advertisement
from wire.endpoint import Endpoint

SCRAPE = ScrapeTarget("m/1", "engine", "10.0.0.7", 9000)
NODE_SCRAPE = ScrapeTarget("node/abc", "node_cache", "10.0.0.7", 9001)
ENGINE = Advertisement(
    "m/1", Endpoint("10.0.0.7", 4711, "/tmp/x/engine.sock"), b"\x00secret\xff", SCRAPE, NODE_SCRAPE
)


def test_it_comes_back_from_json_as_it_was() -> None:
    metadata = json.loads(json.dumps(ENGINE.to_metadata()))
    assert Advertisement.from_metadata(metadata) == ENGINE


def test_another_node_sees_no_unix_socket() -> None:
    assert ENGINE.seen_from(is_same_node=True) == ENGINE.endpoint
    assert ENGINE.seen_from(is_same_node=False) == Endpoint("10.0.0.7", 4711)


def test_the_secret_is_not_in_its_text() -> None:
    assert "secret" not in repr(ENGINE)
    assert ENGINE.secret.hex() not in repr(ENGINE)


@pytest.mark.parametrize("key", ["engine_id", "endpoint", "secret"])
def test_metadata_of_another_shape_names_what_is_missing(key: str) -> None:
    metadata = ENGINE.to_metadata()
    del metadata[key]
    with pytest.raises(ValueError, match=f"no '{key}'"):
        Advertisement.from_metadata(metadata)


def test_an_engine_without_a_scrape_port_is_reachable_all_the_same() -> None:
    metadata = ENGINE.to_metadata()
    del metadata["scrape"], metadata["node_scrape"]
    expected = replace(ENGINE, scrape=None, node_scrape=None)
    assert Advertisement.from_metadata(metadata) == expected
