from engine.weights.leases import Leases


def test_who_renews_keeps_the_folder_it_has() -> None:
    leases = Leases()
    assert leases.take("a", "/1", 10.0) == "/1"
    assert leases.take("a", "/2", 20.0) == "/1"
    assert leases.hold("/1")
    assert not leases.hold("/2")


def test_a_lease_of_nothing_becomes_one_of_what_comes() -> None:
    leases = Leases()
    assert leases.take("a", "", 10.0) == ""
    assert leases.take("a", "/1", 20.0) == "/1"


def test_a_folder_is_kept_for_each_who_was_told_of_it_until_it_leases() -> None:
    leases = Leases()
    leases.keep("/1", 60.0)
    leases.keep("/1", 60.0)
    leases.take("a", "/1", 10.0)
    leases.release("a")
    assert leases.hold("/1")  # the other one hasn't come yet
    leases.take("b", "/1", 10.0)
    leases.take("b", "/1", 10.0)
    leases.release("b")
    assert not leases.hold("/1")


def test_what_is_kept_for_somebody_who_never_comes_is_let_go() -> None:
    leases = Leases()
    leases.keep("/1", 60.0)
    leases.expire(59.0)
    assert leases.hold("/1")
    leases.expire(60.0)
    assert not leases.hold("/1")


def test_a_pinned_folder_stays_without_a_lease() -> None:
    leases = Leases()
    leases.pin("/1")
    leases.pin("/1")
    leases.unpin("/1")
    assert leases.hold("/1")
    assert len(leases) == 0
    leases.unpin("/1")
    assert not leases.hold("/1")


def test_who_was_told_of_a_folder_gets_that_one_though_another_replaced_it() -> None:
    leases = Leases()
    leases.keep("/1", 60.0)
    assert leases.take("a", "/2", 100.0) == "/1"
    leases.expire(60.0)
    assert leases.hold("/1")
    assert leases.take("b", "/2", 100.0) == "/2"
