"""A node's cache in this process: CPU memory only, and whatever a test wants to go wrong."""

from collections import Counter
from dataclasses import dataclass, field

from cache_tiers.block_image import ImageLayout, make_fingerprint
from cache_tiers.messages import (
    Cancel,
    EngineToNode,
    Fetch,
    Fetched,
    Found,
    Gone,
    Loaded,
    Slots,
    Store,
    Stored,
)
from cache_tiers.tier import TierKind
from engine.config import EngineConfig
from engine.engine import Engine
from engine.paced_kv import min_image_bytes
from engine.paced_runner import PacedRunner
from engine.tier_desk import TierDesk
from engine.tier_link import LinkDown, LinkNews, LinkUp
from tests.unit.engine.fakes import (
    BLOCK_SIZE,
    Answer,
    FakeClock,
    RecordingRunner,
    collect,
    make_engine,
    make_runner,
)
from wire.pipe import SyncPipe

LAYOUT = ImageLayout(
    make_fingerprint("test"),
    num_shards=1,
    shard_bytes=min_image_bytes(BLOCK_SIZE),
    block_size_tokens=BLOCK_SIZE,
)


@dataclass
class FakeArena:
    memory: memoryview
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeNode:
    """A ``NodeLink`` with the node behind it; checks that the engine uses only what it may."""

    num_images: int = 64
    layout: ImageLayout = LAYOUT
    stock: int = 16
    """Slots that the engine is granted at a time."""
    kind: TierKind = TierKind.HOST
    """Where the node says that images lay."""
    predicted_s: float = 0.0
    fetch_s: float = 0.0
    is_silent: bool = False
    """Fetches are answered when a test says so."""
    pipe: SyncPipe | None = None
    sent: list[EngineToNode] = field(default_factory=list)
    news: list[LinkNews] = field(default_factory=list)
    images: dict[bytes, Stored] = field(default_factory=dict)
    leases: dict[int, list[bytes]] = field(default_factory=dict)
    unanswered: list[Fetch] = field(default_factory=list)
    is_up: bool = False

    def __post_init__(self) -> None:
        self.come_up()

    def come_up(self) -> None:
        self.memory = memoryview(bytearray(self.num_images * self.layout.image_bytes))
        self.arena = FakeArena(self.memory)
        self._free = [number * self.layout.image_bytes for number in range(self.num_images)]
        self._granted: set[int] = set()
        self.is_up = True
        self.news.append(LinkUp(self.arena))
        self._grant()

    def go_down(self) -> None:
        self.is_up = False
        for state in (self.images, self.leases, self.unanswered, self._granted):
            state.clear()
        self.news.append(LinkDown("a test says so"))

    def poll(self) -> list[LinkNews]:
        news, self.news = self.news, []
        return news

    def send(self, message: EngineToNode) -> None:
        if not self.is_up:
            return
        self.sent.append(message)
        match message:
            case Store():
                self._take_stored(message)
            case Fetch():
                self.unanswered.append(message)
                if not self.is_silent:
                    self.answer()
            case Loaded():
                assert set(message.bad_keys) <= set(self.leases[message.fetch_id])
                del self.leases[message.fetch_id]
                for key in message.bad_keys:
                    self.discard(key)
            case Cancel():
                self.unanswered = [f for f in self.unanswered if f.fetch_id != message.fetch_id]
                self.leases.pop(message.fetch_id, None)

    def drop(self, reason: str) -> None:
        self.go_down()

    def close(self) -> None:
        self.is_up = False

    def answer(self) -> None:
        """All fetches that wait for it."""
        for fetch in self.unanswered:
            keys: list[bytes] = []
            for key in fetch.keys[fetch.num_held :]:
                if key not in self.images:
                    break
                keys.append(key)
            end = fetch.num_held + len(keys)
            partials = [p for p in fetch.partials if p.chain_len == end and p.key in self.images]
            keys += [partial.key for partial in sorted(partials, key=lambda p: p.num_tokens)[-1:]]
            found = [
                Found(image.offset, key, image.num_tokens, self.kind)
                for key in keys
                for image in [self.images[key]]
            ]
            if found:
                self.leases[fetch.fetch_id] = keys
            self.news.append(Fetched(fetch.fetch_id, found, self.predicted_s, self.fetch_s))
        self.unanswered = []

    def discard(self, key: bytes) -> None:
        """Lose an image, unless it is leased."""
        if key in self.images and not any(key in keys for keys in self.leases.values()):
            self._free.append(self.images.pop(key).offset)
            self.news.append(Gone([key]))
            self._grant()

    def corrupt(self, key: bytes) -> None:
        self.memory[self.images[key].offset] ^= 0xFF

    def swap(self, key: bytes, other: bytes) -> None:
        """Give the images of two keys each other's bytes."""
        begin, end = self.images[key].offset, self.images[other].offset
        size = self.layout.image_bytes
        content = bytes(self.memory[begin : begin + size])
        self.memory[begin : begin + size] = self.memory[end : end + size]
        self.memory[end : end + size] = content

    def of(self, kind: type[EngineToNode]) -> list[EngineToNode]:
        return [message for message in self.sent if isinstance(message, kind)]

    def num_sent(self) -> Counter[str]:
        return Counter(type(message).__name__ for message in self.sent)

    def _take_stored(self, message: Store) -> None:
        for stored in message.images:
            self._granted.remove(stored.offset)
            image_bytes = self.memory[stored.offset : stored.offset + self.layout.image_bytes]
            assert any(image_bytes), "a slot is given back that nobody wrote"
            if stored.key in self.images:
                self._free.append(stored.offset)
            else:
                self.images[stored.key] = stored
        self._grant()

    def _grant(self) -> None:
        num_new = min(self.stock - len(self._granted), len(self._free))
        offsets = [self._free.pop() for _ in range(num_new)]
        self._granted.update(offsets)
        if offsets and self.is_up:
            self.news.append(Slots(offsets))


@dataclass
class TieredEngine:
    """An engine with a fake node, driven as the step loop drives it."""

    node: FakeNode
    engine: Engine
    desk: TierDesk
    runner: RecordingRunner
    clock: FakeClock
    answers: dict[str, Answer] = field(default_factory=dict)

    def turn(self) -> None:
        self.engine.poll_tiers()
        if self.engine.has_work:
            collect(self.answers, self.engine.step().deltas)
        self.engine.check_integrity()

    def run(self) -> dict[str, Answer]:
        """Until nothing is left to do."""
        for _ in range(3000):
            self.turn()
            if not self.engine.has_work and not self.engine._live and not self.node.news:
                return self.answers
        raise AssertionError("the engine makes no progress")


def make_tiered(
    config: EngineConfig | None = None,
    *,
    node: FakeNode | None = None,
    num_blocks: int = 64,
    max_model_len: int = 256,
    check_period: int = 1 << 32,
    inner: PacedRunner | None = None,
) -> TieredEngine:
    """By default no request is checked."""
    clock = FakeClock()
    runner = RecordingRunner(inner or make_runner(num_blocks))
    engine = make_engine(
        config, num_blocks=num_blocks, max_model_len=max_model_len, runner=runner, clock=clock
    )
    node = node or FakeNode()
    desk = TierDesk(
        node,
        lambda arena: runner.attach_arena(arena, LAYOUT, ""),
        runner.detach_arena,
        LAYOUT,
        check_period=check_period,
    )
    engine.use_tiers(desk)
    tiered = TieredEngine(node, engine, desk, runner, clock)
    tiered.turn()
    return tiered
