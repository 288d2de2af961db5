import msgspec
import pytest

from cache_tiers.rung import Rung
from cache_tiers.weights.errors import NoRoom, OriginFailed, WrongWeights
from cache_tiers.weights.messages import Stage, WeightsOrder
from engine.weights.model_on_node import Copy, ModelOnNode, Promoted

ORDER = WeightsOrder("model", "s3://bucket/model", Rung.STAGED)


def copy(folder: str = "/staged/1", revision: str = "aa") -> Copy:
    return Copy(ORDER.source, "55", revision, folder, num_bytes=100)


def promoted(rung: Rung = Rung.STAGED, of: Copy | None = None) -> Promoted:
    return Promoted(rung, of or copy(), "disk", (Stage("read", 1.0, 100),))


def staged(of: Copy | None = None, now_s: float = 0.0) -> ModelOnNode:
    model = ModelOnNode("model")
    model.give(ORDER, now_s)
    model.begin()
    model.succeed(promoted(of=of), now_s)
    return model


def test_an_order_is_carried_out_once() -> None:
    model = ModelOnNode("model")
    assert model.next_promotion(0.0) is None
    model.give(ORDER, 0.0)
    assert model.next_promotion(0.0) is Rung.STAGED
    model.begin()
    model.give(ORDER, 1.0)
    assert model.next_promotion(1.0) is None
    model.succeed(promoted(), 2.0)

    assert model.next_promotion(2.0) is None
    state = model.state()
    assert (state.rung, state.wanted, state.folder) == (Rung.STAGED, Rung.STAGED, "/staged/1")
    assert (state.revision, state.origin, state.failure) == ("aa", "disk", None)
    assert state.stages == (Stage("read", 1.0, 100),)


def test_a_higher_rung_than_memory_is_memory() -> None:
    model = staged()
    model.give(msgspec.structs.replace(ORDER, rung=Rung.SERVING), 0.0)
    assert model.next_promotion(0.0) is None
    assert model.is_settled(msgspec.structs.replace(ORDER, rung=Rung.SERVING))


def test_a_failure_keeps_the_old_rung_and_is_tried_again_later_each_time() -> None:
    model = ModelOnNode("model")
    model.give(msgspec.structs.replace(ORDER, rung=Rung.ON_DISK), 0.0)
    model.begin()
    model.succeed(promoted(Rung.ON_DISK, copy("/disk")), 0.0)
    model.give(ORDER, 0.0)
    pauses_s, now_s = [], 0.0
    for _ in range(8):
        assert model.next_promotion(now_s) is Rung.STAGED
        model.begin()
        model.fail(OriginFailed("gone"), now_s)
        began_s = now_s
        while model.next_promotion(now_s) is None:
            now_s += 0.5
        pauses_s.append(now_s - began_s)
        assert (model.rung, model.state().folder) == (Rung.ON_DISK, "/disk")
        assert model.state().failure == "gone"
    assert pauses_s == [1, 2, 4, 8, 16, 32, 60, 60]


def test_wrong_weights_end_it_until_another_order() -> None:
    model = ModelOnNode("model")
    model.give(ORDER, 0.0)
    model.begin()
    model.fail(WrongWeights("not these"), 0.0)
    assert model.is_settled(ORDER)
    model.give(ORDER, 100.0)
    assert model.next_promotion(100.0) is None
    model.give(msgspec.structs.replace(ORDER, weights_sha256="bb"), 101.0)
    assert model.next_promotion(101.0) is Rung.STAGED
    assert model.state().failure is None


def test_a_start_tries_again_at_once_what_failed_but_not_wrong_weights() -> None:
    model = ModelOnNode("model")
    for error, is_tried in ((OriginFailed("gone"), True), (WrongWeights("not these"), False)):
        model.give(ORDER, 0.0)
        model.begin()
        model.fail(error, 0.0)
        model.ask("start 1", ORDER, 0.0)
        assert (model.next_promotion(0.0) is Rung.STAGED) == is_tried
        assert model.is_settled(ORDER) != is_tried
        model.stop_asking("start 1", 0.0)


def test_too_little_memory_reaches_the_disk_and_says_why() -> None:
    model = ModelOnNode("model")
    model.give(ORDER, 0.0)
    model.begin()
    model.succeed(
        Promoted(Rung.ON_DISK, copy("/disk"), "source", (), failure=NoRoom("it is full")), 0.0
    )
    assert model.is_settled(ORDER)
    state = model.state_for(ORDER)
    assert (state.rung, state.folder, state.failure) == (Rung.ON_DISK, "/disk", "it is full")
    assert model.next_promotion(0.5) is None
    assert model.next_promotion(1.0) is Rung.STAGED


def test_who_waits_keeps_it_wanted_whatever_is_ordered() -> None:
    model = ModelOnNode("model")
    model.give(msgspec.structs.replace(ORDER, rung=Rung.COLD), 0.0)
    model.ask("start 1", ORDER, 0.0)
    assert model.next_promotion(0.0) is Rung.STAGED
    assert not model.is_settled(ORDER)
    model.begin()
    model.give(msgspec.structs.replace(ORDER, rung=Rung.COLD), 0.0)
    assert not model.should_break_off
    model.succeed(promoted(), 1.0)
    assert model.is_settled(ORDER)
    model.keep("/staged/1", 60.0, 1.0)
    model.stop_asking("start 1", 1.0)
    assert model.take_leaving() == []  # the replica has been told of it
    model.expire(60.0)
    assert [left.folder for left in model.take_leaving()] == ["/staged/1"]


@pytest.mark.parametrize(
    ("order", "should_break_off"),
    [
        (msgspec.structs.replace(ORDER, rung=Rung.ON_DISK), False),  # it is on the way there
        (msgspec.structs.replace(ORDER, rung=Rung.COLD), True),
        (msgspec.structs.replace(ORDER, source="s3://bucket/other"), True),
    ],
    ids=str,
)
def test_what_nobody_wants_any_more_is_broken_off(
    order: WeightsOrder, should_break_off: bool
) -> None:
    model = ModelOnNode("model")
    model.give(ORDER, 0.0)
    model.begin()
    model.give(order, 0.0)
    assert model.should_break_off is should_break_off
    model.break_off()
    wanted = None if order.rung is Rung.COLD else order.rung
    assert model.next_promotion(0.0) is wanted


def test_a_leased_model_stays_until_it_is_released() -> None:
    model = staged()
    model.lease("replica", 10.0, 0.0)
    model.give(msgspec.structs.replace(ORDER, rung=Rung.ON_DISK), 0.0)
    assert model.take_leaving() == []
    assert not model.can_be_evicted(0.0, for_a_start=True)
    assert model.state().num_leases == 1
    model.release("replica", 5.0)
    assert model.take_leaving() == [copy()]
    assert model.rung is Rung.COLD


def test_a_lease_that_nobody_renews_ends() -> None:
    model = staged()
    model.lease("replica", 10.0, 0.0)
    model.expire(9.0)
    model.lease("replica", 19.0, 9.0)
    model.expire(10.0)
    assert model.state().num_leases == 1
    model.expire(19.0)
    assert model.state().num_leases == 0


def test_a_new_revision_stands_beside_the_one_in_use() -> None:
    model = staged()
    model.lease("old replica", 100.0, 0.0)
    model.outdate()
    assert model.reached(ORDER) is Rung.COLD
    assert (model.rung, model.state_for(ORDER).folder) == (Rung.STAGED, "")
    assert model.next_promotion(0.0) is Rung.STAGED
    model.begin()
    model.succeed(promoted(of=copy("/staged/2", "bb")), 1.0)

    assert model.lease("new replica", 100.0, 1.0) == "/staged/2"
    assert model.lease("old replica", 100.0, 1.0) == "/staged/1"
    assert model.take_leaving() == []
    model.release("old replica", 2.0)
    assert [left.folder for left in model.take_leaving()] == ["/staged/1"]
    assert model.state().folder == "/staged/2"


@pytest.mark.parametrize(
    "other",
    [{"source": "s3://bucket/other"}, {"source_sha256": "66"}, {"weights_sha256": "bb"}],
    ids=str,
)
def test_other_weights_count_as_none(other: dict[str, str]) -> None:
    order = msgspec.structs.replace(ORDER, **other)
    model = staged()
    state = model.state_for(order)
    assert (state.rung, state.folder) == (Rung.COLD, "")
    model.give(order, 0.0)
    assert model.next_promotion(0.0) is Rung.STAGED
    assert model.state().folder == "/staged/1"  # until then


def test_pins_that_hold_change_nothing() -> None:
    model = staged()
    model.give(msgspec.structs.replace(ORDER, weights_sha256="AA", source_sha256="55"), 0.0)
    assert model.next_promotion(0.0) is None


def test_only_who_waits_may_evict_what_is_ordered() -> None:
    model = staged()
    assert not model.can_be_evicted(600.0, for_a_start=False)
    assert model.can_be_evicted(0.0, for_a_start=True)
    model.ask("start 1", ORDER, 0.0)
    assert not model.can_be_evicted(0.0, for_a_start=True)


def test_an_order_that_nobody_repeats_keeps_nothing() -> None:
    model = staged()
    model.give(ORDER, 100.0)
    assert not model.can_be_evicted(700.0, for_a_start=False)
    assert model.can_be_evicted(700.1, for_a_start=False)
    model.lease("replica", 1000.0, 700.1)
    assert not model.can_be_evicted(700.1, for_a_start=False)


def test_who_waits_is_told_when_other_weights_are_wanted() -> None:
    model, other = ModelOnNode("model"), msgspec.structs.replace(ORDER, source="s3://other")
    model.ask("start 1", ORDER, 0.0)
    assert not model.is_settled(ORDER)
    model.give(other, 1.0)
    assert model.is_settled(ORDER)
    assert not model.is_settled(other)


def test_a_folder_that_somebody_removed_is_made_anew() -> None:
    model = staged()
    model.lose("/staged/1")
    assert model.rung is Rung.COLD
    assert model.next_promotion(0.0) is Rung.STAGED


def test_who_starts_from_the_disk_keeps_no_memory() -> None:
    model = ModelOnNode("model")
    model.give(ORDER, 0.0)
    model.begin()
    model.succeed(promoted(Rung.ON_DISK, copy("/disk")), 0.0)
    assert model.lease("replica", 100.0, 0.0) == "/disk"
    model.begin()
    model.succeed(promoted(), 1.0)
    assert model.lease("replica", 200.0, 1.0) == "/disk"
    model.give(msgspec.structs.replace(ORDER, rung=Rung.ON_DISK), 2.0)
    assert model.take_leaving() == [copy()]


@pytest.mark.parametrize(
    ("rung", "is_leased", "is_idle"),
    [(Rung.COLD, False, True), (Rung.COLD, True, False), (Rung.ON_DISK, False, False)],
)
def test_a_model_that_nobody_wants_and_that_is_not_here_is_forgotten(
    rung: Rung, *, is_leased: bool, is_idle: bool
) -> None:
    model = ModelOnNode("model")
    model.give(msgspec.structs.replace(ORDER, rung=rung), 0.0)
    if is_leased:
        model.lease("replica", 10.0, 0.0)
    assert model.is_idle is is_idle
    assert not staged().is_idle
