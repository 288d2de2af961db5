from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.credits import CreditLedger
from engine.errors import CreditError
from engine.messages import LoadView, ServiceClass

IDLE = LoadView(prefill_tokens_per_s=1000.0)


def ledger(
    max_num_places: int = 4, ttft_budget_s: float = 1.0, step_budget_tokens: int = 1
) -> CreditLedger:
    return CreditLedger(
        max_num_places, ttft_budget_s=ttft_budget_s, step_budget_tokens=step_budget_tokens
    )


def test_grants_no_more_than_what_waits() -> None:
    credits_ = ledger()
    credits_.set_demand(1, (0, 2, 0))
    assert credits_.grants(IDLE) == {1: 2}
    assert credits_.grants(IDLE) == {}


def test_grants_no_more_than_the_engine_holds_and_goes_on_when_a_request_finishes() -> None:
    credits_ = ledger(max_num_places=2)
    credits_.set_demand(1, (0, 5, 0))
    assert credits_.grants(IDLE) == {1: 2}
    credits_.submitted(1, 10)
    credits_.submitted(1, 10)
    assert credits_.grants(IDLE) == {}
    credits_.finished(1, 1)
    assert credits_.grants(IDLE) == {1: 1}


def test_a_request_takes_as_many_places_as_it_has_samples() -> None:
    credits_ = ledger(max_num_places=6)
    credits_.set_demand(1, (0, 9, 0))
    assert credits_.grants(IDLE) == {1: 6}
    credits_.returned(1, 5)
    credits_.set_demand(1, (0, 1, 0))
    credits_.submitted(1, 10, num_places=5)
    credits_.set_demand(1, (0, 9, 0))
    assert credits_.grants(IDLE) == {1: 1}
    credits_.finished(1, 2)
    assert credits_.grants(IDLE) == {1: 2}
    assert credits_.num_in_flight == 3


def test_shares_scarce_credits_fairly_however_much_one_gateway_asks_for() -> None:
    credits_ = ledger(max_num_places=6)
    credits_.set_demand(1, (0, 100, 0))
    credits_.set_demand(2, (0, 2, 0))
    credits_.set_demand(3, (0, 100, 0))
    assert credits_.grants(IDLE) == {1: 2, 2: 2, 3: 2}


def test_the_turn_goes_on_where_it_ended() -> None:
    credits_ = ledger(max_num_places=1)
    for source in (1, 2, 3):
        credits_.set_demand(source, (0, 10, 0))
    winners: Counter[int] = Counter()
    for _ in range(9):
        [(source, num_credits)] = credits_.grants(IDLE).items()
        winners[source] += num_credits
        credits_.submitted(source, 1)
        credits_.finished(source, 1)
    assert winners == {1: 3, 2: 3, 3: 3}


def test_holds_back_when_prompts_would_not_be_prefilled_within_the_budget() -> None:
    credits_ = ledger(max_num_places=100, ttft_budget_s=1.0)
    credits_.set_demand(1, (0, 1, 0))
    credits_.grants(IDLE)
    credits_.submitted(1, 300)  # from here on prompts are expected to have 300 tokens
    credits_.set_demand(1, (0, 50, 0))
    assert credits_.grants(IDLE) == {1: 2}  # 300 + 2 x 300 <= 1000
    credits_.taken(1)
    still_pending = LoadView(prefill_tokens_per_s=1000.0, pending_prefill_tokens=300)
    assert credits_.grants(still_pending) == {}
    assert credits_.grants(IDLE) == {1: 1}


def test_a_prompt_longer_than_the_whole_budget_still_gets_in_alone() -> None:
    credits_ = ledger(max_num_places=100, ttft_budget_s=0.001)
    credits_.set_demand(1, (0, 10, 0))
    assert credits_.grants(IDLE) == {1: 1}
    credits_.submitted(1, 5000)
    assert credits_.grants(IDLE) == {}
    credits_.taken(1)
    assert credits_.grants(IDLE) == {1: 1}  # the first one decodes, nothing waits for prefill


def test_as_much_as_one_step_computes_may_wait_however_slow_steps_look() -> None:
    credits_ = ledger(max_num_places=100, step_budget_tokens=512)
    credits_.set_demand(1, (0, 50, 0))
    slow = LoadView(prefill_tokens_per_s=10.0)
    assert credits_.grants(slow) == {1: 4}  # of 128 tokens each


def test_prompts_that_are_mostly_cached_weigh_less() -> None:
    credits_ = ledger(max_num_places=100, step_budget_tokens=512)
    load = LoadView(prefill_tokens_per_s=10.0)
    num_cached = 0
    for num_prompts in range(1, 60):
        credits_.set_demand(1, (0, 1, 0))
        credits_.grants(load)
        credits_.submitted(1, 1000)
        credits_.taken(1)
        credits_.finished(1, 1)
        num_cached += 950
        load = LoadView(
            prefill_tokens_per_s=10.0,
            num_prompt_tokens=num_prompts * 1000,
            num_cached_prompt_tokens=num_cached,
        )
    credits_.set_demand(1, (0, 50, 0))
    assert credits_.grants(load)[1] in range(8, 11)  # some 50 tokens each are new


def test_submitting_without_a_credit_is_an_error() -> None:
    credits_ = ledger()
    with pytest.raises(CreditError, match="without a credit"):
        credits_.submitted(1, 10)


def test_returning_more_than_one_holds_is_an_error() -> None:
    credits_ = ledger()
    credits_.set_demand(1, (0, 1, 0))
    credits_.grants(IDLE)
    with pytest.raises(CreditError, match="2 credits were returned, 1 are held"):
        credits_.returned(1, 2)
    with pytest.raises(CreditError):
        credits_.returned(1, -1)


def test_returned_credits_go_to_those_who_wait() -> None:
    credits_ = ledger(max_num_places=2)
    credits_.set_demand(1, (0, 2, 0))
    credits_.grants(IDLE)
    credits_.set_demand(1, (0, 0, 0))
    credits_.set_demand(2, (0, 2, 0))
    credits_.returned(1, 2)
    assert credits_.grants(IDLE) == {2: 2}


def test_a_closed_gateway_frees_its_credits_at_once_and_its_requests_when_they_end() -> None:
    credits_ = ledger(max_num_places=2)
    credits_.set_demand(1, (0, 2, 0))
    credits_.grants(IDLE)
    credits_.submitted(1, 10)
    credits_.set_demand(2, (0, 2, 0))
    credits_.closed(1)
    assert credits_.grants(IDLE) == {2: 1}
    credits_.finished(1, 1)
    assert credits_.grants(IDLE) == {2: 1}
    credits_.check_integrity()


def test_draining_grants_nothing_more() -> None:
    credits_ = ledger()
    credits_.set_demand(1, (0, 1, 0))
    credits_.stop_granting()
    assert credits_.grants(IDLE) == {}


def test_a_flood_of_batch_work_leaves_an_interactive_request_a_credit_at_once() -> None:
    credits_ = ledger(max_num_places=3)
    credits_.set_demand(1, (0, 0, 1000))
    assert credits_.grants(IDLE) == {1: 3}
    for _ in range(3):
        credits_.submitted(1, 10, service_class=ServiceClass.BATCH)
    assert credits_.grants(IDLE) == {}
    credits_.set_demand(2, (1, 0, 0))
    assert credits_.grants(IDLE) == {2: 1}
    credits_.check_integrity()


def test_prompts_of_lower_classes_do_not_use_up_the_budget_of_a_higher_one() -> None:
    credits_ = ledger(max_num_places=3)
    credits_.set_demand(1, (0, 0, 1))
    credits_.grants(IDLE)
    credits_.submitted(1, 5000, service_class=ServiceClass.BATCH)
    credits_.taken(1)
    busy = LoadView(prefill_tokens_per_s=1000.0, pending_prefill_tokens=5000)
    credits_.set_demand(1, (0, 0, 1))
    assert credits_.grants(busy) == {}
    credits_.set_demand(2, (1, 0, 0))
    assert credits_.grants(busy) == {2: 1}


def test_a_lower_class_goes_on_when_higher_ones_pause() -> None:
    credits_ = ledger(max_num_places=1)
    credits_.set_demand(1, (1, 0, 0))
    credits_.set_demand(2, (0, 0, 1))
    assert credits_.grants(IDLE) == {1: 1}
    credits_.submitted(1, 10, service_class=ServiceClass.INTERACTIVE)
    assert credits_.grants(IDLE) == {}
    credits_.finished(1, 1, ServiceClass.INTERACTIVE)
    credits_.taken(1)
    credits_.started(ServiceClass.INTERACTIVE, 10)
    assert credits_.grants(IDLE) == {2: 1}


def test_credits_of_one_class_used_for_another_are_bounded_in_sum() -> None:
    credits_ = ledger(max_num_places=2)
    for _ in range(50):
        credits_.set_demand(1, (9, 0, 0))
        for _ in range(credits_.grants(IDLE).get(1, 0)):
            credits_.submitted(1, 1, service_class=ServiceClass.BATCH)
    assert credits_.num_in_flight == 6


OPERATIONS = st.tuples(
    st.sampled_from(["demand", "submit", "return", "finish", "take", "close", "grant"]),
    st.integers(0, 3),
    st.integers(0, 6),
)


@given(operations=st.lists(OPERATIONS, max_size=80), max_num_places=st.integers(1, 8))
def test_no_order_of_events_overcommits_the_engine_or_loses_a_credit(
    operations: list[tuple[str, int, int]], max_num_places: int
) -> None:
    credits_ = ledger(max_num_places)
    held: Counter[int] = Counter()
    in_flight: Counter[int] = Counter()
    num_untaken = 0
    generation = 0  # a closed source's number is never used again
    for name, lane, number in operations:
        source = generation * 10 + lane
        match name:
            case "demand":
                credits_.set_demand(source, (0, number, 0))
            case "submit" if held[source]:
                credits_.submitted(source, number * 100)
                held[source] -= 1
                in_flight[source] += 1
                num_untaken += 1
            case "return" if held[source]:
                credits_.returned(source, 1)
                held[source] -= 1
            case "finish" if in_flight[source]:
                credits_.finished(source, 1)
                in_flight[source] -= 1
            case "take" if num_untaken:
                credits_.taken(1)
                num_untaken -= 1
            case "close" if held[source] or in_flight[source]:
                credits_.closed(source)
                del held[source]
                credits_.finished(source, in_flight.pop(source, 0))
                generation += 1
            case "grant":
                held.update(credits_.grants(IDLE))
        credits_.check_integrity()
        assert credits_.num_granted == held.total()
        assert credits_.num_in_flight == in_flight.total()
        assert credits_.num_granted + credits_.num_in_flight <= max_num_places


CLASS_OPERATIONS = st.tuples(
    st.sampled_from(["demand", "submit", "return", "finish", "take", "close", "grant", "grant"]),
    st.sampled_from(ServiceClass),
    st.integers(0, 6),
)


class ClassGateways:
    """One gateway per class, whose requests are all of it."""

    def __init__(self, max_num_places: int) -> None:
        self.credits = ledger(max_num_places)
        self.held: Counter[int] = Counter()
        self.in_flight: Counter[int] = Counter()
        self.num_untaken = 0
        self._generation = 0

    def apply(self, name: str, service_class: ServiceClass, number: int) -> None:
        source = self._generation * 10 + service_class
        match name:
            case "demand":
                self.credits.set_demand(source, demand_of(service_class, number))
            case "submit" if self.held[source]:
                self.credits.submitted(source, number * 100, service_class=service_class)
                self.held[source] -= 1
                self.in_flight[source] += 1
                self.num_untaken += 1
            case "return" if self.held[source]:
                self.credits.returned(source, 1)
                self.held[source] -= 1
            case "finish" if self.in_flight[source]:
                self.credits.finished(source, 1, service_class)
                self.in_flight[source] -= 1
            case "take" if self.num_untaken:
                self.credits.taken(1)
                self.num_untaken -= 1
            case "close" if self.held[source] or self.in_flight[source]:
                self.pause(*ServiceClass)
                self._generation += 1
            case "grant":
                self.held.update(self.credits.grants(IDLE))

    def pause(self, *classes: ServiceClass) -> None:
        """They close; what they had in flight ends."""
        for service_class in classes:
            source = self._generation * 10 + service_class
            self.credits.set_demand(source, (0, 0, 0))
            self.credits.closed(source)
            self.held.pop(source, None)
            if num_open := self.in_flight.pop(source, 0):
                self.credits.finished(source, num_open, service_class)


def demand_of(service_class: ServiceClass, number: int) -> tuple[int, int, int]:
    interactive, standard, batch = (number if c == service_class else 0 for c in ServiceClass)
    return interactive, standard, batch


@given(operations=st.lists(CLASS_OPERATIONS, max_size=80), max_num_places=st.integers(1, 6))
def test_no_order_of_events_among_classes_overcommits_or_starves_one(
    operations: list[tuple[str, ServiceClass, int]], max_num_places: int
) -> None:
    gateways = ClassGateways(max_num_places)
    credits_ = gateways.credits
    for operation in operations:
        gateways.apply(*operation)
        credits_.check_integrity()
        assert credits_.num_granted == gateways.held.total()
        assert credits_.num_in_flight == gateways.in_flight.total()
        assert credits_.num_granted + credits_.num_in_flight <= max_num_places * len(ServiceClass)
    gateways.pause(*ServiceClass)
    assert credits_.num_granted == credits_.num_in_flight == 0
    credits_.taken(gateways.num_untaken)
    credits_.set_demand(999, (0, 0, 1))
    assert credits_.grants(IDLE) == {999: 1}


@given(operations=st.lists(CLASS_OPERATIONS, max_size=80), max_num_places=st.integers(1, 6))
def test_lower_classes_never_keep_an_interactive_request_from_a_credit(
    operations: list[tuple[str, ServiceClass, int]], max_num_places: int
) -> None:
    gateways = ClassGateways(max_num_places)
    for name, service_class, number in operations:
        if service_class is not ServiceClass.INTERACTIVE:
            gateways.apply(name, service_class, number)
    gateways.credits.set_demand(999, (1, 0, 0))
    assert gateways.credits.grants(IDLE)[999] == 1
