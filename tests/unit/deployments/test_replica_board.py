"""Replicas between Serve's router and a gateway, within one process."""

from deployments.replica_board import Replica, ReplicaBoard

A, B = Replica("node-1", {"engine_id": "a"}), Replica("node-2", {"engine_id": "b"})


def test_a_follower_hears_what_was_published_before_and_after() -> None:
    heard: list[tuple[Replica, ...]] = []
    board = ReplicaBoard()
    board.publish("m", (A,))
    board.follow("m", heard.append)
    board.publish("m", (A, B))
    assert heard == [(A,), (A, B)]


def test_a_vanished_replica_is_missing_from_the_next_publication() -> None:
    heard: list[tuple[Replica, ...]] = []
    board = ReplicaBoard()
    board.follow("m", heard.append)
    board.publish("m", (A, B))
    board.publish("m", (B,))
    board.publish("m", ())
    assert heard[1:] == [(B,), ()]


def test_applications_do_not_hear_of_each_other() -> None:
    heard: list[tuple[Replica, ...]] = []
    board = ReplicaBoard()
    board.follow("m", heard.append)
    board.publish("other", (A,))
    assert heard == []


def test_nothing_is_heard_after_unfollowing() -> None:
    heard: list[tuple[Replica, ...]] = []
    board = ReplicaBoard()
    board.follow("m", heard.append)
    board.unfollow("m")
    board.publish("m", (A,))
    assert heard == []


def test_a_replicas_text_shows_no_metadata() -> None:
    # asyncio logs the arguments of a callback that failed.
    assert "engine_id" not in repr(A)
