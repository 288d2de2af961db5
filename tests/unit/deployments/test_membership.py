"""Replicas between Serve's router and a gateway, within one process."""

from deployments.membership import Membership, Replica

A, B = Replica("node-1", {"engine_id": "a"}), Replica("node-2", {"engine_id": "b"})


def test_a_follower_hears_what_was_published_before_and_after() -> None:
    heard: list[tuple[Replica, ...]] = []
    membership = Membership()
    membership.publish("m", (A,))
    membership.follow("m", heard.append)
    membership.publish("m", (A, B))
    assert heard == [(A,), (A, B)]


def test_a_vanished_replica_is_missing_from_the_next_publication() -> None:
    heard: list[tuple[Replica, ...]] = []
    membership = Membership()
    membership.follow("m", heard.append)
    membership.publish("m", (A, B))
    membership.publish("m", (B,))
    membership.publish("m", ())
    assert heard[1:] == [(B,), ()]


def test_applications_do_not_hear_of_each_other() -> None:
    heard: list[tuple[Replica, ...]] = []
    membership = Membership()
    membership.follow("m", heard.append)
    membership.publish("other", (A,))
    assert heard == []


def test_nothing_is_heard_after_unfollowing() -> None:
    heard: list[tuple[Replica, ...]] = []
    membership = Membership()
    membership.follow("m", heard.append)
    membership.unfollow("m")
    membership.publish("m", (A,))
    assert heard == []
