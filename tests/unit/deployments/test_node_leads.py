from deployments.node_leads import LONGEST_S, NUM_KEPT, NodeLeads


def test_a_node_counts_from_being_asked_for_until_it_is_ready() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, {"a"})
    leads.update(10.0, 1, {"a"})
    leads.update(50.0, 1, {"a"})
    leads.update(100.0, 0, {"a", "b"})
    assert leads.times_s == (90.0,)


def test_each_node_is_measured_from_the_oldest_that_waited() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, set())
    leads.update(10.0, 2, set())
    leads.update(20.0, 3, set())
    leads.update(70.0, 1, {"a", "b"})
    leads.update(90.0, 0, {"a", "b", "c"})
    assert leads.times_s == (60.0, 60.0, 70.0)


def test_a_node_that_fell_silent_and_comes_back_is_none_that_was_asked_for() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, {"a"})
    leads.update(10.0, 1, {"a"})
    leads.update(20.0, 2, set())
    leads.update(30.0, 1, {"a"})
    assert not leads.times_s
    leads.update(100.0, 0, {"a", "b"})
    assert leads.times_s == (90.0,)


def test_a_node_with_room_for_several_is_one_measurement() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, set())
    leads.update(10.0, 4, set())
    leads.update(20.0, 5, set())
    leads.update(60.0, 1, {"a"})
    leads.update(70.0, 0, {"a", "b"})
    assert leads.times_s == (50.0, 50.0)


def test_what_was_on_its_way_before_is_not_measured() -> None:
    leads = NodeLeads()
    leads.update(0.0, 1, set())
    leads.update(10.0, 0, {"a"})
    assert not leads.times_s


def test_a_node_that_nobody_asked_for_is_not_measured() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, set())
    leads.update(10.0, 0, {"a"})
    assert not leads.times_s


def test_what_is_no_longer_asked_for_is_forgotten_and_the_newest_first() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, set())
    leads.update(10.0, 1, set())
    leads.update(20.0, 2, set())
    leads.update(30.0, 1, set())
    leads.update(40.0, 0, {"a"})
    assert leads.times_s == (30.0,)


def test_what_never_came_for_hours_is_no_time() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, set())
    leads.update(10.0, 1, set())
    leads.update(11.0 + LONGEST_S, 0, {"a"})
    assert not leads.times_s


def test_a_node_that_dies_is_waited_for_again() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, {"a"})
    leads.update(10.0, 1, set())
    leads.update(40.0, 0, {"b"})
    assert leads.times_s == (30.0,)


def test_what_was_measured_before_goes_before_and_only_the_last_are_kept() -> None:
    leads = NodeLeads()
    leads.update(0.0, 0, set())
    leads.update(10.0, 1, set())
    leads.update(15.0, 0, {"a"})
    leads.recall([float(at) for at in range(NUM_KEPT)])
    assert leads.times_s == (*(float(at) for at in range(1, NUM_KEPT)), 5.0)
