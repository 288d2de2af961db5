"""A front with a real step loop's process goes down and up the warm ladder, and hands requests over
to replicas that stay.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from tokenizers import Tokenizer

from cache_tiers.config import NodeCacheConfig
from cache_tiers.rung import Rung
from engine.config import MIB, EngineConfig, PacedConfig
from engine.front import EngineFront
from engine.messages import Demand, FinishReason, GatewayMessage, Query, SamplingParams, Submit
from engine.profile import Profile, ProfileAnswer, ProfileOrder
from engine.rung_messages import RungState, Successor
from tests.integration.node_processes import node_process
from tests.integration.paced_front import (
    FOREVER,
    PACED,
    Gateway,
    gateway_at,
    running,
    write_paced_checkpoint,
)
from tests.quickstart import quickstart_checkpoint

pytestmark = pytest.mark.integration

QUICK = PACED.model_copy(update={"hand_over_after_s": 0.2})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


@pytest.fixture
def unix_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


async def test_a_replica_sleeps_and_wakes_and_says_what_it_took(checkpoint: Path) -> None:
    config = QUICK.model_copy(update={"paced": PacedConfig(step_base_s=0.004, wake_s=0.3)})
    async with (
        running(checkpoint, config=config) as (front, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        await gateway.submit("a", max_tokens=5, prompt_len=300)
        tokens, _ = await gateway.answer("a")
        keys = gateway.request("a", 5, 300).block_keys[7::8]
        for _ in range(3):
            gateway.order(Rung.PARKED, 1)
        await gateway.until_rung(Rung.PARKED)
        assert [(state.rung, state.is_moving) for state in gateway.rungs] == [
            (Rung.SERVING, True),
            (Rung.PARKED, False),
        ]
        evicted = [key for events in gateway.events for key in events.evicted]
        assert set(evicted) == set(keys)
        await gateway.until(lambda: gateway.load.num_free_blocks == 0)
        assert gateway.load.num_blocks > 0
        gateway.send(Demand((0, 1, 0)))
        async with gateway_at(endpoint) as late:
            await late.until_rung(Rung.PARKED)
            await late.until(lambda: bool(late.snapshots))
            assert late.snapshots[0].keys == []
        assert "rung{" in front.render_metrics().decode().replace("headwater:", "")

        gateway.order(Rung.SERVING, 2)
        await gateway.until_rung(Rung.SERVING)
        assert 0.3 <= gateway.rung.wake_s < 1.5
        assert 0 < gateway.rung.sleep_s < 1.5
        await gateway.until(lambda: gateway.num_credits == 1)  # of the demand while it slept
        await gateway.submit("b", max_tokens=5, prompt_len=300)
        assert (await gateway.answer("b"))[0] == tokens
        assert gateway.load.num_free_blocks > 0


async def test_a_paced_replica_takes_the_time_of_a_start(checkpoint: Path) -> None:
    config = PACED.model_copy(update={"paced": PacedConfig(start_s=1.5)})
    started_s = time.monotonic()
    async with running(checkpoint, config=config):
        assert time.monotonic() - started_s > 1.5


async def test_requests_that_run_past_the_grace_are_moved_with_all_their_tokens(
    checkpoint: Path,
) -> None:
    async with (
        running(checkpoint, config=QUICK) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        alone = await answer_of(gateway, "alone", max_tokens=400)  # the prompt of "moved", too
        await gateway.submit("short", max_tokens=8)
        await gateway.submit("moved", max_tokens=FOREVER)
        several = msgspec.structs.replace(gateway.request("several", 120), num_samples=3)
        await submit(gateway, Submit(several))
        await gateway.started("several")
        gateway.order(Rung.PARKED, 1)
        _, short = await gateway.answer("short")
        assert short.finish_reason is FinishReason.LENGTH
        tokens, last = await gateway.answer("moved")
        assert last.finish_reason is FinishReason.MOVED
        assert last.usage is not None
        assert last.usage.completion_tokens == len(tokens) > 10
        await gateway.until_rung(Rung.PARKED)
        ends = [d.finish_reason for d in gateway.deltas["several"] if d.finish_reason]
        assert ends == [FinishReason.LENGTH] * 3
        gateway.order(Rung.SERVING, 2)
        await gateway.until_rung(Rung.SERVING)
        prompt = gateway.request("moved", 1).token_ids
        sampling = SamplingParams(max_tokens=400, temperature=0)
        resumed = msgspec.structs.replace(
            gateway._request("resumed", prompt + tokens, sampling),
            num_generated_tokens=len(tokens),
        )
        await submit(gateway, Submit(resumed))
        rest, _ = await gateway.answer("resumed")
        assert tokens + rest == alone


async def answer_of(gateway: Gateway, request_id: str, max_tokens: int) -> list[int]:
    await gateway.submit(request_id, max_tokens)
    return (await gateway.answer(request_id))[0]


async def submit(gateway: Gateway, message: Submit) -> None:
    gateway.send(Demand((0, 1, 0)))
    await gateway.until(lambda: gateway.num_credits > 0)
    gateway.num_credits -= 1
    gateway.send(message)


async def test_an_order_to_wake_turns_a_replica_back_that_has_not_slept_yet(
    checkpoint: Path,
) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        await gateway.submit("r", max_tokens=FOREVER)
        await gateway.started("r")
        gateway.order(Rung.PARKED, 5)
        await gateway.until(lambda: gateway.rung.is_moving)
        gateway.order(Rung.SERVING, 6)
        gateway.order(Rung.PARKED, 4)  # is late: a newer one holds
        await gateway.until_rung(Rung.SERVING)
        num_deltas = len(gateway.deltas["r"])
        await gateway.until(lambda: len(gateway.deltas["r"]) > num_deltas + 20)
        assert gateway.deltas["r"][-1].finish_reason is None
        assert len(await answer_of(gateway, "next", 5)) == 5
        assert all(state.rung is Rung.SERVING for state in gateway.rungs)


async def test_submits_that_cross_an_order_to_sleep_are_moved_even_those_after_it_slept(
    checkpoint: Path,
) -> None:
    async with (
        running(checkpoint, config=QUICK) as (front, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        gateway.send(Demand((0, 5, 0)))
        await gateway.until(lambda: gateway.num_credits == 5)
        gateway.order(Rung.PARKED, 1)
        await gateway.until(lambda: gateway.rung.is_moving)  # one before that may be served
        gateway.send(Submit(gateway.request("crossing", 5)))
        await gateway.until_rung(Rung.PARKED)
        late: list[GatewayMessage] = [
            Submit(gateway.request("late", 5)),
            Submit(msgspec.structs.replace(gateway.request("several", 5), num_samples=2)),
            Submit(gateway._request("empty", [], SamplingParams(max_tokens=1))),
        ]
        for message in late:
            gateway.send(message)
        for request_id in ("crossing", "late", "several", "empty"):
            tokens, last = await gateway.answer(request_id)
            is_sound = request_id != "empty"
            assert last.finish_reason is (FinishReason.MOVED if is_sound else FinishReason.ERROR)
            assert tokens == []
        await gateway.until(lambda: len(gateway.deltas["several"]) == 2)
        assert front.num_open == 0
        gateway.order(Rung.SERVING, 2)
        await gateway.until_rung(Rung.SERVING)
        gateway.send(Submit(gateway.request("last credit", 5)))
        assert len((await gateway.answer("last credit"))[0]) == 5


async def test_a_drain_hands_over_at_once_who_waits_and_later_who_runs(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        gateway.send(Demand((0, 10, 0)))
        await gateway.until(lambda: gateway.num_credits == 10)
        names = [f"r{number}" for number in range(10)]
        for name in names:  # eight run, two wait inside
            gateway.send(Submit(gateway.request(name, FOREVER)))
        await gateway.until(lambda: gateway.load.num_running == 8)
        drain = asyncio.create_task(front.drain(hand_over_after_s=0.3))
        waiting = []
        for name in names:
            tokens, last = await gateway.answer(name)
            assert last.finish_reason is FinishReason.MOVED
            if not tokens:
                waiting.append(name)
                assert len(gateway.deltas[name]) == 1
        assert len(waiting) == 2
        assert await drain is True


async def test_a_drain_ends_what_a_gateway_could_not_go_on_with(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (front, endpoint),
        gateway_at(endpoint) as gateway,
        gateway_at(endpoint) as other,
    ):
        gateway.send(Successor(exists=False))
        await gateway.submit("ends", max_tokens=200)
        await gateway.started("ends")
        drain = asyncio.create_task(front.drain(hand_over_after_s=0.0))
        tokens, last = await gateway.answer("ends")
        assert (len(tokens), last.finish_reason) == (200, FinishReason.LENGTH)
        assert await drain is True
    async with (
        running(checkpoint) as (front, endpoint),
        gateway_at(endpoint) as gateway,
        gateway_at(endpoint) as other,
    ):
        for each in (gateway, other):
            each.send(Successor(exists=False))
        await gateway.submit("moves", max_tokens=FOREVER)
        await gateway.started("moves")
        drain = asyncio.create_task(front.drain(hand_over_after_s=0.0))
        await asyncio.sleep(0.2)
        gateway.send(Successor(exists=True))
        await asyncio.sleep(0.2)
        assert not drain.done()
        other.connection.close("it needs nothing any more")
        assert (await gateway.answer("moves"))[1].finish_reason is FinishReason.MOVED
        assert await drain is True


async def test_a_drain_wins_over_orders_and_one_that_sleeps_leaves_at_once(
    checkpoint: Path,
) -> None:
    async with (
        running(checkpoint, config=QUICK) as (front, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        gateway.send(Demand((0, 1, 0)))
        await gateway.until(lambda: gateway.num_credits == 1)  # which would be waited for
        gateway.order(Rung.PARKED, 1)
        await gateway.until_rung(Rung.PARKED)
        async with asyncio.timeout(0.5):
            assert await front.drain() is True
        gateway.order(Rung.SERVING, 2)
        await asyncio.sleep(0.1)
        assert gateway.rung.rung is Rung.PARKED


async def test_a_drain_amid_going_to_sleep_ends_with_all_requests(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=100)
        await gateway.started("r")
        gateway.order(Rung.PARKED, 1)
        await gateway.until(lambda: gateway.rung.is_moving)
        drain = asyncio.create_task(front.drain())
        tokens, last = await gateway.answer("r")
        assert (len(tokens), last.finish_reason) == (100, FinishReason.LENGTH)
        assert await drain is True
        await asyncio.sleep(0.1)
        assert gateway.rung == RungState(Rung.SERVING, is_moving=True)


async def test_a_rank_that_dies_amid_a_move_is_an_engine_that_is_lost(checkpoint: Path) -> None:
    config = QUICK.model_copy(update={"paced": PacedConfig(wake_s=5)})
    async with (
        running(checkpoint, config=config) as (front, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        gateway.order(Rung.PARKED, 1)
        await gateway.until_rung(Rung.PARKED)
        gateway.order(Rung.SERVING, 2)
        await gateway.until(lambda: gateway.rung.is_moving)
        psutil.Process(front.rank_pid).kill()
        assert await gateway.reason_of_end()


async def test_a_gateway_that_goes_amid_a_move_does_not_hold_it_up(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as other,
    ):
        async with gateway_at(endpoint) as gateway:
            await gateway.submit("r", max_tokens=FOREVER)
            await gateway.started("r")
            gateway.order(Rung.PARKED, 1)
            await gateway.until(lambda: gateway.rung.is_moving)
        await other.until_rung(Rung.PARKED, timeout_s=5)  # long before the grace is over


async def test_queries_are_answered_by_a_replica_that_sleeps(checkpoint: Path) -> None:
    async with (
        running(checkpoint, config=QUICK) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        gateway.order(Rung.PARKED, 1)
        await gateway.until_rung(Rung.PARKED)
        order = msgspec.json.encode(ProfileOrder(5, 0.2)).decode()
        gateway.send(Query(1, "profile", order))
        gateway.send(Query(2, "steps"))
        await gateway.until(lambda: len(gateway.replies) == 2)
        [steps, profile] = gateway.replies
        assert steps.payload is not None
        answer = msgspec.msgpack.decode(profile.payload or b"", type=ProfileAnswer)
        assert isinstance(answer, Profile)


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_prefixes_are_on_the_node_when_a_replica_has_slept(
    checkpoint: Path, unix_dir: Path, num_ranks: int
) -> None:
    config = EngineConfig(
        runner="paced",
        max_num_seqs=8,
        tensor_parallel_size=num_ranks,
        kv_cache_bytes=1 << 20,
        hand_over_after_s=0.2,
        paced=PacedConfig(step_base_s=0.004, per_prefill_token_s=2e-4),
    )
    async with (
        node_process(unix_dir, NodeCacheConfig(host_bytes=64 * MIB)) as node,
        running(checkpoint, config=config, node_cache_socket=node.socket_path) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        tokens = []
        for name in "abc":  # their prompt is the same
            await gateway.submit(name, max_tokens=8, prompt_len=801)
            answer, last = await gateway.answer(name)
            tokens.append(answer)
            assert last.usage is not None
            if name == "a":
                assert last.usage.restored is None
            else:
                assert last.usage.restored is not None
                assert last.usage.restored.host == 800
            gateway.order(Rung.PARKED, 2 * ord(name))
            await gateway.until_rung(Rung.PARKED)
            gateway.order(Rung.SERVING, 2 * ord(name) + 1)
            await gateway.until_rung(Rung.SERVING)
        assert tokens[0] == tokens[1] == tokens[2]


def resident_bytes(front: EngineFront) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in front._ranks.pids)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("num_ranks", [1, 3])
async def test_a_real_model_gives_the_memory_of_its_pool_back_and_answers_as_before(
    num_ranks: int,
) -> None:
    real_checkpoint = await asyncio.to_thread(quickstart_checkpoint)
    pool_bytes = 256 * MIB
    config = EngineConfig(
        kv_cache_bytes=pool_bytes, tensor_parallel_size=num_ranks, hand_over_after_s=0.2
    )
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    async with (
        running(real_checkpoint.path, config=config) as (front, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        card = gateway.card
        assert card is not None
        prompt = Tokenizer.from_str(card.tokenizer_json.decode()).encode(text).ids
        answers = []
        for number in range(3):
            await gateway.ask(f"r{number}", prompt, tuple(card.eos_token_ids))
            answers.append((await gateway.answer(f"r{number}"))[0])
            before = resident_bytes(front)
            gateway.order(Rung.PARKED, 2 * number + 1)
            await gateway.until_rung(Rung.PARKED)
            asleep = resident_bytes(front)
            assert before - asleep > 0.97 * pool_bytes
            gateway.order(Rung.SERVING, 2 * number + 2)
            await gateway.until_rung(Rung.SERVING)
            assert abs(resident_bytes(front) - before) < 0.03 * pool_bytes
            assert gateway.rung.wake_s < 1.0
        assert answers[0] == answers[1] == answers[2]
        assert len(answers[0]) > 3
