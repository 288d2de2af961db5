"""The engine's side of the KV tiers: asks the node for what prompts need, and hands it what the
accelerator lets go.

A request waits here, outside of the scheduler, until the node has answered, its time is up, or the
node is gone; it then goes on with what was found. Without a node all of this costs nothing and the
engine computes. Call order: ``poll`` between steps, execution, and ``commit`` or
``abandon``. Must not know how a step is planned, or tensors.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator

from cache_tiers.block_image import ImageLayout
from cache_tiers.messages import (
    Cancel,
    Ended,
    Export,
    Exported,
    Fetch,
    Fetched,
    Gone,
    MediaEvents,
    RecomputeCost,
    Slots,
    Store,
)
from engine.breakpoints import Breakpoints, find_partial
from engine.fetches import Fetches, WaitingRequest
from engine.leases import Leases
from engine.media_events import MediaEventLog
from engine.messages import CacheEvents, FinishReason
from engine.observations import TierStats
from engine.restores import make_restore
from engine.sequence import Sequence
from engine.step import StepPlan, StepResult
from engine.tier_counts import TierCounts
from engine.tier_link import LinkDown, LinkNews, LinkUp, MappedArena, NodeLink
from engine.transfer_pace import TransferPace
from engine.write_policy import BlockWriter
from wire.pipe import SyncPipe, wait_any

FETCH_TIMEOUT_S = 2.0
"""A prompt waits no longer for the node."""
ANSWER_GRACE_S = 0.1
"""The node answers in time; its answer may take so long to come."""
MOST_SILENCE = 2
"""Times the time limit that a node may say nothing while prompts wait: then it is left, or every
prompt would wait for one that hangs."""
CHECK_PERIOD = 256
"""Of so many restored requests one recomputes a block, to compare it with its image."""


class TierDesk:
    """Owner of what waits for the node, of its leases, and of what is written to it."""

    def __init__(
        self,
        link: NodeLink,
        attach: Callable[[memoryview], None],
        detach: Callable[[], None],
        layout: ImageLayout,
        *,
        timeout_s: float = FETCH_TIMEOUT_S,
        check_period: int = CHECK_PERIOD,
    ) -> None:
        """``attach``: lets the runners use an arena; raises if they can't. ``detach``: has
        them let go of it. ``layout``: of its images.
        """
        self._link = link
        self._attach = attach
        self._detach = detach
        self._arena: MappedArena | None = None
        self._block_size = layout.block_size_tokens
        self._image_bytes = layout.image_bytes
        self._max_offset = 0
        """Of an image in the arena that is attached."""
        self._timeout_s = timeout_s
        self._check_period = check_period
        self._is_up = False
        self._silent_since_s: float | None = None
        """Since then prompts have been waiting, and the node said nothing at all."""
        self._fetches = Fetches()
        self._leases = Leases(link.send)
        self._exports: dict[int, list[bytes]] = {}
        """Keys that are yet to be stored."""
        self._media = MediaEventLog()
        self.writer = BlockWriter(self._block_size)
        self.breakpoints = Breakpoints(self.writer, self._block_size)
        self.pace = TransferPace()
        self.counts = TierCounts()

    @property
    def pipe(self) -> SyncPipe | None:
        """To wait for."""
        return self._link.pipe

    @property
    def num_waiting(self) -> int:
        """Sequences that wait here."""
        return len(self._fetches)

    @property
    def num_waiting_tokens(self) -> int:
        """Of those, what is not on the accelerator."""
        return sum([s.num_tokens - s.num_expected_hit_tokens for s in self._fetches.sequences])

    @property
    def expires_s(self) -> float | None:
        """When ``poll`` is due even if nothing comes, on the engine's clock; None: nobody waits."""
        return self._fetches.expires_s

    def ask(
        self, samples: list[Sequence], num_held: int, cost: Callable[[], RecomputeCost]
    ) -> bool:
        """A request came, ``num_held`` leading blocks of which the accelerator has. Whether it is
        to wait here.
        """
        first = samples[0]
        request = first.request
        if not self._is_up or first.needs_prompt_logprobs:
            return False
        partials = [
            partial
            for breakpoint_ in request.breakpoints
            if (partial := find_partial(first, breakpoint_, self._block_size)) is not None
            and partial.chain_len >= num_held
        ]
        if not request.block_keys and not partials:
            return False
        is_needed = num_held < len(request.block_keys) or bool(partials)
        now_s, fetch_id = first.taken_s, self._fetches.next_id()
        timeout_s = min(self._timeout_s, first.deadline_s - now_s)
        if timeout_s <= 0:
            return False
        self._link.send(
            Fetch(
                fetch_id,
                request.block_keys,
                num_held,
                partials,
                cost() if is_needed else RecomputeCost(),
                timeout_s,
                request.peer,
            )
        )
        if is_needed:
            expires_s = now_s + timeout_s + ANSWER_GRACE_S
            self._fetches.wait(fetch_id, WaitingRequest(samples[:], expires_s, partials))
            self.counts.num_fetches += 1
            if self._silent_since_s is None:
                self._silent_since_s = now_s
        return is_needed

    def await_answer(self, timeout_s: float) -> None:
        """Give the node a moment to answer, if anybody waits for it."""
        if self._fetches and self._link.pipe is not None:
            wait_any((self._link.pipe,), timeout_s)

    def poll(self, now_s: float) -> list[list[Sequence]]:
        """Take in what the node said; returns the requests that wait no longer."""
        ready: list[list[Sequence]] = []
        for news in self._link.poll():
            self._silent_since_s = None
            self._take(news, ready)
        for fetch_id in self._fetches.expired(now_s):
            expired = self._fetches.answered(fetch_id)
            assert expired is not None
            self._link.send(Cancel(fetch_id))
            self.counts.num_timeouts += 1
            ready.append(expired.samples)
            since_s = self._silent_since_s
            if since_s is not None and now_s - since_s >= MOST_SILENCE * self._timeout_s:
                self._leave_node(f"it has said nothing for {now_s - since_s:.1f} s", ready)
                break
        return ready

    def leave(self, sequence: Sequence) -> None:
        """A sequence that waits here ends."""
        fetch_id = self._fetches.leave(sequence)
        if fetch_id is not None:
            self._link.send(Cancel(fetch_id))

    def is_waiting(self, sequence: Sequence) -> bool:
        return any(sequence is waiting for waiting in self._fetches.sequences)

    def commit(
        self, plan: StepPlan, result: StepResult, recompute_s: Callable[[int], float]
    ) -> None:
        """The plan was carried out: what it stored is the node's."""
        num_transfers = len(plan.stores) + len(plan.loads)
        self.pace.record(num_transfers, result.transfer_s)
        self.counts.record_step(plan, result)
        if plan.stores:
            self._link.send(Store(self.writer.commit(recompute_s)))
        self.settle()

    def settle(self) -> None:
        """Pin what is complete, and tell what was exported."""
        for pin in self.breakpoints.take_pins():
            self._link.send(pin)
        for export_id, keys in list(self._exports.items()):
            if not any(self.writer.is_pending(key) for key in keys):
                del self._exports[export_id]
                self._link.send(Exported(export_id))

    def abandon(self) -> None:
        """The plan failed, or was never carried out."""
        self.writer.abandon()

    def restored(self, sequence: Sequence) -> None:
        """``sequence`` needs no image any more: its lease ends, its usage is known."""
        restore = sequence.restore
        assert restore is not None
        sequence.restored, sequence.restore = restore.usage(), None
        self.counts.load_s += restore.load_s
        if self._leases.end(restore):
            self.writer.forget(restore.bad_keys)

    def stats(self) -> TierStats:
        return self.counts.stats(
            is_connected=self._is_up,
            num_dropped=self.writer.num_dropped,
            num_wanted=self.writer.num_wanted,
        )

    def reach_breakpoints(self, sequence: Sequence, now_s: float) -> None:
        """``sequence`` has computed more of its prompt."""
        if self._is_up:
            self.breakpoints.reach(sequence, now_s)

    def end(self, sequence: Sequence) -> None:
        """``sequence`` ends while it has its blocks; if its answer is complete, its session may
        come back.
        """
        if sequence.restore is not None:
            self.restored(sequence)
        is_complete = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if not self._is_up or sequence.index > 0 or not is_complete:
            return
        num_blocks = sequence.num_computed_tokens // self._block_size
        if num_blocks > 0:
            request = sequence.request
            keys = [sequence.block_key(i, self._block_size) for i in range(num_blocks)]
            self._link.send(
                Ended(
                    keys[-1],
                    list(keys),
                    request.session_kind,
                    request.expected_return_s,
                )
            )

    def forget_requests(self) -> None:
        """After a failure all requests end."""
        self.abandon()
        self._fetches.take_all()
        self._leases.cancel()

    def take_events(self, numbers: Iterator[int]) -> list[CacheEvents]:
        """What the node's media gained and lost since the last call."""
        return self._media.take(numbers)

    def close(self) -> None:
        self._link.close()

    def _take(self, news: LinkNews, ready: list[list[Sequence]]) -> None:
        match news:
            case LinkUp():
                self._go_up(news)
            case LinkDown():
                self._go_down(ready)
                self._let_go_of_arena()
            case _ if not self._is_up:
                pass  # of a node whose arena the runners can't use
            case Slots() if self._are_images(news.offsets):
                self.writer.grant(news.offsets)
            case Fetched() if self._are_images(image.offset for image in news.images):
                self._take_fetched(news, ready)
            case MediaEvents():
                self._media.add(news)
            case Gone():
                self.writer.forget(news.keys)
            case Export():
                self._exports[news.export_id] = news.keys
                self.writer.want(news.keys)
                self.settle()
            case _:
                self._leave_node("it speaks of images outside of its arena", ready)

    def _go_up(self, news: LinkUp) -> None:
        self._arena = news.arena
        try:
            self._attach(news.arena.memory)
        except Exception as error:  # memory of a device can't be had for many a reason
            self._link.drop(f"the engine can't use its arena: {error}")
            return
        self._is_up = True
        self._max_offset = news.arena.memory.nbytes - self._image_bytes
        self.writer.open()

    def _let_go_of_arena(self) -> None:
        """Or the next node could find no room for its own. No plan holds transfers now."""
        self._detach()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _are_images(self, offsets: Iterable[int]) -> bool:
        """Whether images can lie there: runners take that for granted."""
        return all(0 <= offset <= self._max_offset for offset in offsets)

    def _leave_node(self, reason: str, ready: list[list[Sequence]]) -> None:
        self._link.drop(reason)
        self._go_down(ready)

    def _go_down(self, ready: list[list[Sequence]]) -> None:
        if not self._is_up:
            return  # it was left, or never used
        self._is_up = False
        self._silent_since_s = None
        self.counts.num_losses += 1
        self.writer.close()
        self.breakpoints.forget()
        self._exports.clear()
        self._media.forget()
        ready += [request.samples for request in self._fetches.take_all()]
        self._leases.lose()

    def _take_fetched(self, fetched: Fetched, ready: list[list[Sequence]]) -> None:
        request = self._fetches.answered(fetched.fetch_id)
        self.writer.note_stored([image.key for image in fetched.images])
        if request is not None:
            ready.append(request.samples)
        if not fetched.images:
            return
        if request is None:
            self._link.send(Cancel(fetched.fetch_id))
            return
        first = request.samples[0]
        self.counts.record_fetch(fetched)
        restore = make_restore(
            fetched,
            block_size_tokens=self._block_size,
            partials=request.partials,
            is_checked=self._is_checked(first.request.request_id),
        )
        self._leases.begin(first, restore)

    def _is_checked(self, request_id: str) -> bool:
        return zlib.crc32(request_id.encode()) % self._check_period == 0
