"""A node's cache is found again where the last one was."""

from pathlib import Path

import pytest

from deployments.node_identity import SECRET_BYTES, NodeIdentity, read_identity, write_identity


def test_the_next_cache_takes_over_secret_and_ports(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    identity = NodeIdentity(b"s" * SECRET_BYTES, 4711, 9001, 7000)
    for _ in range(2):
        write_identity(path, identity)
        assert read_identity(path) == identity
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert "73737373" not in repr(identity)


def test_one_that_was_written_before_there_were_weights_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(b'{"secret": "%s", "peer_port": 1, "scrape_port": 2}' % (b"73" * SECRET_BYTES))
    assert read_identity(path) == NodeIdentity(b"s" * SECRET_BYTES, 1, 2, 0)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\xff",
        b'{"secret": "73", "peer_port": 1, "scrape_port": 2}',
        b'{"secret": "zz", "peer_port": 1, "scrape_port": 2}',
        b'{"secret": "%s", "peer_port": 99999, "scrape_port": 2}' % (b"73" * SECRET_BYTES),
    ],
)
def test_without_one_that_is_whole_a_new_one_is_made(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "identity.json"
    if content is not None:
        path.write_bytes(content)
    first, second = read_identity(path), read_identity(path)
    assert len(first.secret) == SECRET_BYTES
    assert (first.peer_port, first.scrape_port) == (0, 0)
    assert first.secret != second.secret
