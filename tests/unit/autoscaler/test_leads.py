import pytest

from autoscaler.ladder import WarmNodes
from autoscaler.leads import Leads, Starts, Wakes
from autoscaler.observation import ReplicaObservation, StartingReplica
from cache_tiers.rung import Rung
from tests.unit.autoscaler.fleets import make_replica

LEADS_S = {Rung.COLD: 100.0}


def test_without_a_measurement_the_prior_holds() -> None:
    assert Leads().lead_s(Rung.COLD, 100.0) == 100.0


def test_a_few_measurements_weigh_with_the_prior() -> None:
    leads = Leads()
    leads.record(Rung.COLD, 20.0)
    assert 20.0 < leads.lead_s(Rung.COLD, 100.0) < 100.0


def test_then_only_what_was_measured_counts_and_nearly_the_worst() -> None:
    leads = Leads()
    for time_s in (20.0, 21.0, 22.0, 23.0, 40.0):
        leads.record(Rung.COLD, time_s)
    assert 23.0 < leads.lead_s(Rung.COLD, 1000.0) <= 40.0
    assert leads.lead_s(Rung.PARKED, 3.0) == 3.0
    for _ in range(20):
        leads.record(Rung.COLD, 10.0)
    assert leads.lead_s(Rung.COLD, 1000.0) == 10.0


def start(starts: Starts, leads: Leads, now_s: float, num: int, *there: str) -> None:
    replicas = tuple(make_replica(each) for each in there)
    starts.update(now_s, replicas, num, None, leads)


def test_a_start_counts_from_the_decision_until_the_router_counts_the_replica() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    start(starts, leads, 10.0, 2, "a")
    unseeded = (make_replica("a"), make_replica("b", is_seeded=False))
    starts.update(40.0, unseeded, 2, None, leads)
    assert starts.etas_s(40.0, LEADS_S) == [70.0]
    start(starts, leads, 50.0, 2, "a", "b")
    assert starts.under_way == []
    assert len(leads.measured(Rung.COLD)) == 1
    assert leads.lead_s(Rung.COLD, 40.0) == pytest.approx(40.0)


def test_starts_before_the_planner_looked_are_not_measured() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 2, "a")
    start(starts, leads, 5.0, 2, "a", "b")
    assert len(leads.measured(Rung.COLD)) == 0


def test_a_start_that_is_overdue_is_not_imminent_for_ever() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    start(starts, leads, 1.0, 2, "a")
    etas = []
    for now_s in (51.0, 101.0, 140.0, 152.0, 1000.0):
        start(starts, leads, now_s, 2, "a")
        etas += starts.etas_s(now_s, LEADS_S)
    assert etas == [50.0, 0.0, 0.0, 100.0, 100.0]


def test_a_replica_that_was_out_of_sight_was_not_started() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 2, "a", "b")
    start(starts, leads, 1.0, 2, "a")
    assert len(starts.under_way) == 1
    start(starts, leads, 4.0, 2, "a", "b")
    assert starts.under_way == []
    assert len(leads.measured(Rung.COLD)) == 0


def test_a_node_that_dies_while_its_replica_starts_makes_the_start_longer() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    start(starts, leads, 1.0, 2, "a")
    for now_s in range(2, 201):
        start(starts, leads, float(now_s), 2, "a")
    start(starts, leads, 201.0, 2, "a", "c")
    assert len(leads.measured(Rung.COLD)) == 1
    assert leads.lead_s(Rung.COLD, 200.0) == pytest.approx(200.0)


def test_the_newest_starts_are_given_up_first() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    start(starts, leads, 10.0, 2, "a")
    start(starts, leads, 50.0, 3, "a")
    start(starts, leads, 60.0, 2, "a")
    assert [each.asked_s for each in starts.under_way] == [10.0]


def test_an_observer_who_knows_the_rung_is_believed() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    told = (StartingReplica(5.0, Rung.STAGED), StartingReplica(3.0, Rung.ON_DISK))
    starts.update(6.0, (make_replica("a"),), 3, told, leads)
    new = make_replica("b", started_from=Rung.ON_DISK)
    starts.update(20.0, (make_replica("a"), new), 3, told[:1], leads)
    assert leads.lead_s(Rung.ON_DISK, 17.0) == 17.0
    assert len(leads.measured(Rung.ON_DISK)) == 1
    assert [each.rung for each in starts.under_way] == [Rung.STAGED]


def wake(replica: ReplicaObservation) -> tuple[Wakes, Leads]:
    wakes = Wakes()
    wakes.order(10.0, (replica,), {replica.engine_id: Rung.SERVING})
    return wakes, Leads()


def test_waking_counts_from_the_order_until_it_serves() -> None:
    wakes, leads = wake(make_replica("a", Rung.PARKED))
    assert wakes.etas_s(11.0, 3.0) == [2.0]
    wakes.update(12.0, (make_replica("a", Rung.PARKED, is_moving=True),), leads)
    assert wakes.etas_s(12.0, 3.0) == [1.0]
    wakes.update(14.0, (make_replica("a"),), leads)
    assert wakes.etas_s(14.0, 3.0) == []
    assert leads.lead_s(Rung.PARKED, 4.0) == 4.0
    assert len(leads.measured(Rung.PARKED)) == 1


def test_one_that_dies_or_is_told_to_sleep_again_wakes_no_more() -> None:
    wakes, leads = wake(make_replica("a", Rung.PARKED))
    wakes.update(12.0, (), leads)
    assert wakes.etas_s(12.0, 3.0) == []
    replica = make_replica("b", Rung.PARKED)
    wakes, leads = wake(replica)
    wakes.order(11.0, (replica,), {"b": Rung.PARKED})
    assert wakes.etas_s(12.0, 3.0) == []
    assert len(leads.measured(Rung.PARKED)) == 0


def test_one_that_does_not_wake_is_not_imminent_for_ever() -> None:
    wakes, _ = wake(make_replica("a", Rung.PARKED))
    assert wakes.etas_s(100.0, 3.0) == [3.0]


def test_a_start_is_measured_under_the_rung_that_it_began_on() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    # One node holds the weights, so the second one begins from nothing.
    starts.update(1.0, (make_replica("a"),), 3, None, leads, WarmNodes(num_staged=1))
    leads_s = {Rung.STAGED: 4.0, Rung.COLD: 30.0}
    assert starts.etas_s(2.0, leads_s) == [3.0, 29.0]
    warm = make_replica("b", started_from=Rung.STAGED)
    starts.update(5.0, (make_replica("a"), warm), 3, None, leads)
    assert leads.measured(Rung.STAGED) == (4.0,)
    assert [each.rung for each in starts.under_way] == [Rung.COLD]
    starts.update(31.0, (make_replica("a"), warm, make_replica("c")), 3, None, leads)
    assert leads.measured(Rung.COLD) == (30.0,)


def test_where_it_began_in_truth_counts_not_where_it_was_believed_to() -> None:
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "a")
    starts.update(1.0, (make_replica("a"),), 2, None, leads, WarmNodes(num_staged=1))
    fell_back = make_replica("b", started_from=Rung.ON_DISK)
    starts.update(21.0, (make_replica("a"), fell_back), 2, None, leads)
    assert leads.measured(Rung.STAGED) == ()
    assert leads.measured(Rung.ON_DISK) == (20.0,)


def test_where_most_begin_colder_than_they_could_is_noticed_and_so_is_when_they_no_longer_do() -> (
    None
):
    starts, leads = Starts(), Leads()
    start(starts, leads, 0.0, 1, "e0")
    there: tuple[ReplicaObservation, ...] = (make_replica("e0"),)
    noticed = []
    for number, rung in enumerate([Rung.COLD] * 4 + [Rung.STAGED] * 5, 1):
        starts.update(10.0 * number, there, 1 + number, None, leads, WarmNodes(num_staged=1))
        there += (make_replica(f"e{number}", started_from=rung),)
        starts.update(10.0 * number + 5, there, 1 + number, None, leads, WarmNodes(num_staged=1))
        noticed.append(starts.are_colder)
    assert noticed == [False, False, True, True, True, True, False, False, False]
