"""A node's cache that lies: about where images are, what they are, and whose slots are.

Answers are those got alone, no step fails, and no request waits for ever. Whatever lies in the
arena is proved when it is loaded.
"""

from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cache_tiers.messages import (
    EngineToNode,
    Export,
    Fetch,
    Fetched,
    Found,
    Gone,
    MediaEvents,
    Slots,
    Store,
)
from cache_tiers.tier import TierKind
from engine.messages import CacheBreakpoint, EngineRequest
from tests.unit.engine.fakes import BLOCK_SIZE, answers_alone, make_config, make_request
from tests.unit.engine.tier_fakes import LAYOUT, FakeNode, make_tiered

NUM_BLOCKS = 12
MAX_MODEL_LEN = 44


@dataclass
class LyingNode(FakeNode):
    """Checks nothing, and holds nothing for anybody."""

    asked: list[int] = field(default_factory=list)
    """Fetches, answered or not."""

    def send(self, message: EngineToNode) -> None:
        if not self.is_up:
            return
        if isinstance(message, Fetch):
            self.unanswered.append(message)
            if not self.is_silent:
                self.answer()
        elif isinstance(message, Store):
            for stored in message.images:
                self._granted.discard(stored.offset)
                self.images[stored.key] = stored
            if not self._free:
                self._free = [image.offset for image in list(self.images.values())[:5]]
            self._grant()

    def lie(self, what: str, number: int) -> None:
        keys = sorted(self.images)
        match what:
            case "grant used slots" if keys:
                self._grant_again([self.images[keys[number % len(keys)]].offset])
            case "grant twice":
                self._grant_again(sorted(self._granted)[: number + 1])
            case "grant overlapping":
                self._grant_again([number * LAYOUT.image_bytes // 3])
            case "grant outside":
                self.news.append(Slots([self.num_images * LAYOUT.image_bytes - number]))
            case "write to leased" if keys:
                begin = self.images[keys[number % len(keys)]].offset
                self.memory[begin : begin + 100] = bytes(100)
            case "mix up" if keys:
                self._mix_up(keys, number)
            case "answer again" if self.asked:
                fetch_id = self.asked[number % len(self.asked)]
                self.news.append(Fetched(fetch_id, [self._found(key) for key in keys[:9]], 0, 0))
            case "find anything" if self.unanswered:
                fetch = self.unanswered.pop()
                found = [
                    Found(-4096 if number == 0 else 0, key, size, TierKind.DISK)
                    for key in [*fetch.keys, *[partial.key for partial in fetch.partials]]
                    for size in (BLOCK_SIZE, number)
                ]
                self.news.append(Fetched(fetch.fetch_id, found, float("nan"), -1.0))
            case "forget":
                self.news.append(Gone(list(keys)))
            case "tell":
                self.news.append(MediaEvents(TierKind.HOST, [b"", bytes(16)], list(keys)))
                self.news.append(Export(number, [b"", *keys]))
            case "be silent":
                self.is_silent = True
            case "speak":
                self.is_silent = False
                self.answer()

    def answer(self) -> None:
        self.asked += [fetch.fetch_id for fetch in self.unanswered]
        super().answer()

    def _found(self, key: bytes) -> Found:
        image = self.images[key]
        return Found(image.offset, key, image.num_tokens, self.kind)

    def _grant_again(self, offsets: list[int]) -> None:
        self.images = {k: i for k, i in self.images.items() if i.offset not in offsets}
        self._granted.update(offsets)
        self.news.append(Slots(offsets))

    def _mix_up(self, keys: list[bytes], number: int) -> None:
        shifted = [self.images[key] for key in keys[number % len(keys) :] + keys]
        for key, other in zip(keys, shifted, strict=False):
            self.images[key] = replace(self.images[key], offset=other.offset)


LIES = [
    "grant used slots",
    "grant twice",
    "grant overlapping",
    "grant outside",
    "write to leased",
    "mix up",
    "answer again",
    "find anything",
    "forget",
    "tell",
    "be silent",
    "speak",
]


@dataclass(frozen=True)
class Ask:
    first: int
    num_tokens: int
    breakpoint_at: int
    """None in the prompt: no breakpoint."""


@dataclass(frozen=True)
class Lie:
    what: str
    number: int


@dataclass(frozen=True)
class Turns:
    number: int


ASKS = st.builds(Ask, st.integers(3, 6), st.sampled_from([6, 17, 30, 33, 38]), st.integers(0, 20))
OPERATIONS = st.lists(
    st.one_of(
        ASKS,
        ASKS,
        st.builds(Lie, st.sampled_from(LIES), st.integers(0, 9)),
        st.builds(Turns, st.integers(1, 12)),
    ),
    min_size=10,
    max_size=40,
)


def to_request(request_id: str, ask: Ask) -> EngineRequest:
    prompt = [ask.first, *range(10, 9 + ask.num_tokens)]
    place = ask.breakpoint_at
    breakpoints = [CacheBreakpoint(place, 60.0)] if 0 < place <= len(prompt) else []
    return replace(make_request(request_id, prompt, 3), breakpoints=breakpoints)


@settings(max_examples=40, deadline=None)
@given(operations=OPERATIONS, check_period=st.sampled_from([1, 3, 1 << 32]))
def test_no_lie_of_the_node_changes_a_token_or_ends_a_step(
    operations: list[Ask | Lie | Turns], check_period: int
) -> None:
    node = LyingNode(num_images=30, stock=6)
    tiered = make_tiered(
        make_config(max_num_seqs=3),
        node=node,
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        check_period=check_period,
    )
    requests: list[EngineRequest] = []
    for operation in operations:
        match operation:
            case Turns():
                if not node.is_up:
                    node.come_up()
                for _ in range(operation.number):
                    tiered.turn()
            case Lie():
                node.lie(operation.what, operation.number)
            case Ask():
                requests.append(to_request(f"r{len(requests)}", operation))
                tiered.engine.add(requests[-1])
    for _ in range(300):
        tiered.turn()
        tiered.clock.now_s += 0.05

    stats = tiered.engine.stats
    assert stats.num_failed_steps == 0
    for request in requests:
        alone = answers_alone(replace(request, breakpoints=[]), max_model_len=MAX_MODEL_LEN)
        answer = tiered.answers[request.request_id]
        assert answer.token_ids == alone[request.request_id].token_ids
    assert stats.tiers is not None
    event(f"loaded {min(3, sum(stats.tiers.num_loaded_blocks.values()))}")
    event(f"failed {min(3, sum(stats.tiers.num_failed_blocks.values()))}")
    event(f"losses {min(3, stats.tiers.num_losses)}")
