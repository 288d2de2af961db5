"""Whatever happens in whatever order: nothing that is used leaves, and what is wanted comes."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_tiers.rung import Rung
from cache_tiers.weights.errors import OriginFailed
from cache_tiers.weights.messages import WeightsOrder
from engine.weights.model_on_node import Copy, ModelOnNode, Promoted

SOURCES = st.sampled_from(["one", "two"])
RUNGS = st.sampled_from([Rung.COLD, Rung.ON_DISK, Rung.STAGED])
HOLDERS = st.sampled_from(["a", "b", "c"])


class Use(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.model = ModelOnNode("model")
        self.now_s = 0.0
        self.num_copies = 0
        self.here: set[str] = set()
        self.used: dict[str, str] = {}
        self.under_way: tuple[WeightsOrder, Rung] | None = None

    @rule(source=SOURCES, rung=RUNGS)
    def order(self, source: str, rung: Rung) -> None:
        self.model.give(WeightsOrder("model", source, rung), self.now_s)

    @rule(seconds=st.floats(0.1, 100.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def promote(self) -> None:
        rung = self.model.next_promotion(self.now_s)
        if rung is not None:
            assert self.under_way is None
            assert self.model.order is not None
            self.model.begin()
            self.under_way = self.model.order, rung

    @rule(rung=st.sampled_from([Rung.ON_DISK, Rung.STAGED]))
    def succeed(self, rung: Rung) -> None:
        if self.under_way is not None:
            (order, wanted), self.under_way = self.under_way, None
            self.num_copies += 1
            folder = f"/{self.num_copies}"
            reached = min(rung, wanted)
            copy = Copy(order.source, "", f"{self.num_copies:064}", folder, 1)
            if reached is Rung.STAGED:
                self.here.add(folder)
            failure = OriginFailed("no room") if reached < wanted else None
            self.model.succeed(Promoted(reached, copy, "peer", (), failure), self.now_s)

    @rule()
    def fail(self) -> None:
        if self.under_way is not None:
            self.under_way = None
            before = self.model.state()
            self.model.fail(OriginFailed("gone"), self.now_s)
            after = self.model.state()
            assert (before.rung, before.folder) == (after.rung, after.folder)

    @rule()
    def break_off(self) -> None:
        if self.under_way is not None and self.model.should_break_off:
            self.under_way = None
            self.model.break_off()

    @rule(holder=HOLDERS)
    def lease(self, holder: str) -> None:
        folder = self.model.lease(holder, self.now_s + 1e9, self.now_s)
        if self.used.get(holder):
            assert folder == self.used[holder]
        if folder in self.here:  # not on the disk
            self.used[holder] = folder

    @rule(holder=HOLDERS)
    def release(self, holder: str) -> None:
        self.model.release(holder, self.now_s)
        self.used.pop(holder, None)

    @rule()
    def outdate(self) -> None:
        self.model.outdate()

    @rule()
    def leave(self) -> None:
        for copy in self.model.take_leaving():
            self.here.remove(copy.folder)

    @rule(for_a_start=st.booleans())
    def evict(self, *, for_a_start: bool) -> None:
        if self.model.can_be_evicted(self.now_s, for_a_start=for_a_start):
            self.here.remove(self.model.evict().folder)

    @invariant()
    def what_is_used_is_here(self) -> None:
        if hasattr(self, "model"):
            assert set(self.used.values()) <= self.here

    @invariant()
    def what_is_shown_is_here(self) -> None:
        if hasattr(self, "model"):
            state = self.model.state()
            assert (state.rung is Rung.STAGED) == (state.folder in self.here)
            assert (state.folder == "") == (state.rung is Rung.COLD)

    def teardown(self) -> None:
        """With nothing in the way, what is ordered comes, and all else goes."""
        for holder in list(self.used):
            self.release(holder)
        if self.under_way is not None:
            self.fail()
        self.model.give(WeightsOrder("model", "three", Rung.STAGED), self.now_s)
        self.promote()
        self.succeed(Rung.STAGED)
        assert self.model.rung is Rung.STAGED
        self.leave()
        assert len(self.here) == 1
        self.model.give(WeightsOrder("model", "three", Rung.COLD), self.now_s)
        self.leave()
        assert not self.here


TestUse = Use.TestCase
TestUse.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
