"""What gateways and a front say to each other, with a real step loop's process behind it."""

import asyncio
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from engine.config import MIB, EngineConfig, PacedConfig
from engine.messages import (
    Abort,
    Demand,
    FinishReason,
    GatewayMessage,
    GetSnapshot,
    Query,
    Reply,
    ReturnCredits,
    Submit,
)
from engine.profile import Profile, ProfileAnswer, ProfileOrder, ProfileRefused
from tests.integration.paced_front import (
    FOREVER,
    PACED,
    gateway_at,
    running,
    write_paced_checkpoint,
)
from tests.quickstart import quickstart_checkpoint
from wire.endpoint import Endpoint
from wire.frames import MAX_FRAME_BYTES
from wire.limits import Limits

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_paced_checkpoint(folder)
    return folder


@pytest.fixture
def unix_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


async def test_a_gateway_learns_the_model_first(checkpoint: Path, unix_dir: Path) -> None:
    async with running(checkpoint, unix_dir) as (front, endpoint), gateway_at(endpoint) as gateway:
        card = gateway.card
        assert card is not None
        assert (card.engine_id, card.model, card.vocab_size) == ("tiny/1", "tiny", 500)
        assert (card.eos_token_ids, card.max_model_len) == ([2], 20_000)
        assert card.tokenizer_json == (checkpoint / "tokenizer.json").read_bytes()
        assert card.chat_template == "{{ messages }}"
        await gateway.until(lambda: gateway.load.num_blocks > 0)
        assert card.max_request_tokens == 20_000
        assert gateway.load.prefill_tokens_per_s > 0
        assert gateway.load.num_prompt_tokens == 0  # the warm-up does not count
        assert gateway.load.num_free_blocks == gateway.load.num_blocks
        front.check_health()


async def test_streams_the_same_answer_over_both_kinds_of_socket(
    checkpoint: Path, unix_dir: Path
) -> None:
    async with running(checkpoint, unix_dir) as (_, endpoint):
        answers = []
        for reachable in (endpoint, Endpoint(endpoint.host, endpoint.port)):
            async with gateway_at(reachable) as gateway:
                await gateway.submit("r", max_tokens=12, prompt_len=200)
                tokens, last = await gateway.answer("r")
                answers.append(tokens)
                assert len(gateway.deltas["r"]) == 12  # one delta per step
                assert last.finish_reason is FinishReason.LENGTH
                assert last.usage is not None
                assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (200, 12)
        assert answers[0] == answers[1]
        assert len(answers[0]) == 12


async def test_gateways_are_told_how_many_they_are(checkpoint: Path) -> None:
    async with running(checkpoint) as (_, endpoint), gateway_at(endpoint) as first:
        await first.until(lambda: first.num_gateways == 1)
        async with gateway_at(endpoint) as second:
            await second.until(lambda: second.num_gateways == 2)
            await first.until(lambda: first.num_gateways == 2)
        await first.until(lambda: first.num_gateways == 1)


async def test_other_gateways_are_told_of_load_and_cached_prefixes(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as busy,
        gateway_at(endpoint) as idle,
    ):
        await busy.submit("r", max_tokens=20, prompt_len=128)
        await busy.answer("r")
        await idle.until(lambda: bool(idle.stored))
        assert idle.stored == busy.request("r", 1, 128).block_keys[7::8]
        await idle.until(lambda: idle.load.num_generated_tokens == 20)
        assert not idle.deltas


async def test_a_new_gateway_learns_all_keys_and_an_operator_what_happened(
    checkpoint: Path,
) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as first:
        await first.submit("r", max_tokens=20, prompt_len=300)
        await first.answer("r")
        async with gateway_at(endpoint) as late:
            await late.until(lambda: bool(late.snapshots))
            assert late.snapshots[0].keys == late.request("r", 1, 300).block_keys[7::8]
            for _ in range(100):
                late.send(GetSnapshot())
            late.send(Query(1, "steps", "2"))
            late.send(Query(2, "request", "r"))
            late.send(Query(3, "request", "unknown"))
            await late.until(lambda: len(late.replies) == 3)
            assert len(late.snapshots) <= 2
            steps, timeline, unknown = [reply.payload for reply in late.replies]
            assert steps is not None
            assert [step["outcome"] for step in json.loads(steps)] == ["ok", "ok"]
            assert timeline is not None
            course = json.loads(timeline)
            assert course["is_finished"]
            assert (course["num_prompt_tokens"], course["num_generated_tokens"]) == (300, 20)
            assert course["events"][-1]["kind"] == "blocks_freed"
            assert unknown is None
        page = front.render_metrics().decode()
        assert 'headwater:generation_tokens_total{engine="tiny/1",model_name="tiny"} 20.0' in page


async def test_an_abort_ends_the_request_with_its_usage(checkpoint: Path) -> None:
    async with running(checkpoint) as (_, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=FOREVER)
        await gateway.started("r")
        gateway.send(Abort("r"))
        tokens, last = await gateway.answer("r")
        assert last.finish_reason is FinishReason.ABORT
        assert last.usage is not None
        assert last.usage.completion_tokens == len(tokens) < 100
        gateway.send(Abort("unknown"))
        await gateway.submit("next", max_tokens=2)
        assert len((await gateway.answer("next"))[0]) == 2


async def test_a_gateway_can_not_abort_the_request_of_another(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as owner,
        gateway_at(endpoint) as other,
    ):
        await owner.submit("r", max_tokens=40)
        await owner.started("r")
        other.send(Abort("r"))
        await other.submit("r", max_tokens=5)  # nor use its name
        assert (await other.answer("r"))[1].finish_reason is FinishReason.ERROR
        tokens, last = await owner.answer("r")
        assert (len(tokens), last.finish_reason) == (40, FinishReason.LENGTH)


async def test_a_lost_gateway_takes_its_requests_along_and_nobody_elses(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as survivor:
        async with gateway_at(endpoint) as lost:
            for index in range(3):
                await lost.submit(f"lost-{index}", max_tokens=FOREVER)
                await lost.started(f"lost-{index}")
            await survivor.submit("kept", max_tokens=300)
            await survivor.started("kept")
            lost.send(Demand((0, 5, 0)))
            await lost.until(lambda: lost.num_credits > 0)
        lost_s = time.monotonic()
        await survivor.until(lambda: survivor.load.num_running == 1, timeout_s=2)
        assert time.monotonic() - lost_s < 2
        survivor.send(Demand((0, 9, 0)))
        await survivor.until(lambda: survivor.num_credits == 9)  # 8 + 2 places, one is taken
        tokens, last = await survivor.answer("kept")
        assert (len(tokens), last.finish_reason) == (300, FinishReason.LENGTH)
        front.check_health()


async def test_no_more_requests_than_credits(checkpoint: Path) -> None:
    async with running(checkpoint) as (_, endpoint), gateway_at(endpoint) as other:
        async with gateway_at(endpoint) as greedy:
            greedy.send(Submit(greedy.request("r", 5)))
            assert await greedy.reason_of_end() == "the peer closed the connection"
        async with gateway_at(endpoint) as forger:
            forger.send(ReturnCredits(3))
            assert await forger.reason_of_end() == "the peer closed the connection"
        async with gateway_at(endpoint) as babbler:
            babbler.connection.send(b"not msgpack")
            assert await babbler.reason_of_end() == "the peer closed the connection"
        async with gateway_at(endpoint) as glutton:  # what it announces would not fit the pipe
            assert glutton.connection._transport is not None
            glutton.connection._transport.write(MAX_FRAME_BYTES.to_bytes(4, "little"))
            assert await glutton.reason_of_end() == "the peer closed the connection"
        await other.submit("r", max_tokens=3)
        assert len((await other.answer("r"))[0]) == 3


async def test_credits_are_shared_between_gateways_and_come_back(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as first,
        gateway_at(endpoint) as second,
    ):
        first.send(Demand((0, 50, 0)))
        await first.until(lambda: first.num_credits == 10)  # 8 sequences and 2 that wait
        second.send(Demand((0, 50, 0)))
        first.send(Demand((0, 0, 0)))
        first.send(ReturnCredits(4))
        await second.until(lambda: second.num_credits == 4)


async def test_a_gateway_that_does_not_read_is_cut_and_slows_nobody(
    checkpoint: Path, unix_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Over the Unix socket: the kernel's buffers are small there, TCP's hold thousands of steps.
    config = PACED.model_copy(update={"max_num_seqs": 64, "paced": PacedConfig(step_base_s=0.002)})
    async with (
        running(checkpoint, unix_dir, config, max_gateway_backlog_bytes=200_000) as (_, endpoint),
        gateway_at(endpoint) as reader,
        gateway_at(endpoint, Limits(max_receive_queue_bytes=50_000)) as stuck,
    ):
        stuck.send(Demand((0, 60, 0)))
        await stuck.until(lambda: stuck.num_credits == 60)
        for index in range(60):
            await stuck.submit(f"stuck-{index}", max_tokens=FOREVER)
        await reader.submit("r", max_tokens=FOREVER)
        arrivals_s: list[float] = []

        def is_alone() -> bool:
            arrivals_s.append(time.monotonic())
            return bool(reader.deltas["r"]) and reader.load.num_running == 1

        with caplog.at_level("INFO", "engine.front"):
            await reader.until(is_alone, timeout_s=30)
        assert "does not keep up" in caplog.text
        num_steps = len(reader.deltas["r"])
        assert num_steps > 100  # it took many steps until the other one was cut,
        gaps_s = [after - before for before, after in pairwise(arrivals_s)]
        assert max(gaps_s) < 0.5  # and none of them waited for it
        await reader.until(lambda: len(reader.deltas["r"]) > num_steps + 50)


async def test_a_gateway_that_floods_or_forges_disturbs_no_other_stream(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as steady:
        await steady.submit("r", max_tokens=FOREVER)
        await steady.started("r")
        arrivals_s: list[float] = []

        def has_seen(num_deltas: int) -> Callable[[], bool]:
            def is_met() -> bool:
                arrivals_s.append(time.monotonic())
                return len(steady.deltas["r"]) >= num_deltas

            return is_met

        floods: list[list[GatewayMessage]] = [
            [GetSnapshot()] * 2000,
            [Query(1, "steps")] * 2000,
            [Abort("r")] * 2000,
            [Abort("x" * 100_000)] * 20,
        ]
        for flood in floods:
            async with gateway_at(endpoint) as hostile:
                for message in flood:
                    hostile.send(message)
                await steady.until(has_seen(len(steady.deltas["r"]) + 30))
        forged: list[bytes] = []
        encode = msgspec.msgpack.encode
        async with gateway_at(endpoint) as hostile:
            sound = msgspec.msgpack.decode(encode(Submit(hostile.request("s", 5))))
            for field, value in ((7, 3), (7, -1), (8, "x"), (0, 5), (6, [])):
                fields = [*sound["request"]]
                fields[field] = value
                forged.append(encode({"type": "submit", "request": fields}))
        for payload in forged:
            async with gateway_at(endpoint) as hostile:
                hostile.send(Demand((1, 0, 0)))
                await hostile.until(lambda: hostile.num_credits == 1)
                hostile.connection.send(payload)
                assert await hostile.reason_of_end() == "the peer closed the connection"
        for number in (nan, inf, -1e300, 1e300, -1.0):
            for name in ("age_s", "timeout_s"):
                async with gateway_at(endpoint) as hostile:
                    hostile.send(Demand((1, 0, 0)))
                    await hostile.until(lambda: hostile.num_credits == 1)
                    request = hostile.request(f"{name}{number}", 5)
                    hostile.send(Submit(msgspec.structs.replace(request, **{name: number})))
                    await hostile.answer(request.request_id)
        await steady.until(has_seen(len(steady.deltas["r"]) + 30))
        assert max(after - before for before, after in pairwise(arrivals_s)) < 0.5
        await steady.until(lambda: front.num_connected == 1)
        assert front.num_open == 1
        front.check_health()


async def test_a_drain_finishes_what_runs_and_grants_nothing(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=100)
        await gateway.started("r")
        drain = asyncio.create_task(front.drain())
        await gateway.until(lambda: gateway.is_draining)
        gateway.send(Demand((0, 3, 0)))
        tokens, _ = await gateway.answer("r")
        assert len(tokens) == 100
        assert await drain is True
        assert gateway.num_credits == 0
        async with gateway_at(endpoint) as late:
            await late.until(lambda: late.is_draining)


async def test_a_drain_gives_up_after_its_grace_time(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=FOREVER)
        await gateway.started("r")
        assert await front.drain(grace_s=0.2) is False


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_real_model_answers_through_the_front() -> None:
    real_checkpoint = await asyncio.to_thread(quickstart_checkpoint)
    config = EngineConfig(kv_cache_bytes=64 * MIB)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    async with (
        running(real_checkpoint.path, config=config) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        card = gateway.card
        assert card is not None
        tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
        await gateway.ask("r", tokenizer.encode(prompt).ids, tuple(card.eos_token_ids))
        tokens, last = await gateway.answer("r")
        assert "Paris" in tokenizer.decode(tokens)
        assert last.finish_reason is FinishReason.STOP


def profile_query(query_id: int, num_steps: int, timeout_s: float) -> Query:
    order = msgspec.json.encode(ProfileOrder(num_steps, timeout_s))
    return Query(query_id, "profile", order.decode())


def answer_in(reply: Reply) -> Profile | ProfileRefused:
    return msgspec.msgpack.decode(reply.payload or b"", type=ProfileAnswer)


async def test_a_gateway_records_steps_and_another_one_is_refused_meanwhile(
    checkpoint: Path, unix_dir: Path
) -> None:
    async with (
        running(checkpoint, unix_dir) as (_, endpoint),
        gateway_at(endpoint) as gateway,
        gateway_at(endpoint) as other,
    ):
        await gateway.submit("r", FOREVER)
        await gateway.started("r")
        gateway.send(profile_query(1, num_steps=50, timeout_s=20))
        await asyncio.sleep(0.05)
        other.send(profile_query(1, num_steps=50, timeout_s=20))
        await other.until(lambda: bool(other.replies))
        await gateway.until(lambda: bool(gateway.replies))
        [refused], [reply] = other.replies, gateway.replies
        assert answer_in(refused) == ProfileRefused()
        profile = answer_in(reply)
        assert isinstance(profile, Profile)
        assert profile.summary.num_steps == 50
        assert profile.summary.num_decodes == 1.0
        assert profile.summary.step_ms > 4.0  # as long as the paced runner sleeps
        assert profile.trace is not None
        events = json.loads(gzip.decompress(profile.trace))["traceEvents"]
        assert sum(event["name"].startswith("step ") for event in events) == 50


async def test_a_recording_of_an_idle_engine_ends_in_time(checkpoint: Path, unix_dir: Path) -> None:
    async with running(checkpoint, unix_dir) as (_, endpoint), gateway_at(endpoint) as gateway:
        gateway.send(profile_query(1, num_steps=5, timeout_s=0.2))
        await gateway.until(lambda: bool(gateway.replies))
        profile = answer_in(gateway.replies[0])
        assert isinstance(profile, Profile)
        assert profile.summary.num_steps == 0
        assert "only 0 of 5 steps" in profile.summary.notes[0]


async def test_an_order_out_of_bounds_closes_the_connection(
    checkpoint: Path, unix_dir: Path
) -> None:
    async with running(checkpoint, unix_dir) as (_, endpoint), gateway_at(endpoint) as gateway:
        gateway.send(profile_query(1, num_steps=10**6, timeout_s=1))
        assert await gateway.reason_of_end()
