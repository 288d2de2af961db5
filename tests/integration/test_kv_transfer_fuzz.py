"""Random conversations on pools too small for them, over a node whose images are damaged, lost or
mixed up and which goes and comes: every answer is that of an engine without tiers.

KV is a 2-layer model's, on one rank and on three.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from cache_tiers.keys import BlockKey, block_keys
from cache_tiers.messages import Loaded, Store
from engine.checkpoints.store import open_checkpoint
from engine.collectives import Collectives
from engine.config import EngineConfig, EngineSpec, RankSpec
from engine.engine import Engine
from engine.kv_images import image_layout
from engine.messages import EngineRequest, FinishReason, SamplingParams
from engine.model_card import model_root_key
from engine.models.registry import read_model_config
from engine.runner import create_runner
from engine.sizing import engine_geometry, size_engine
from engine.step import ModelRunner
from engine.tier_desk import TierDesk
from tests.unit.engine.arenas import SOCKET_PATH
from tests.unit.engine.fakes import Answer, FakeClock, collect, run_to_end
from tests.unit.engine.thread_ranks import RankThreads
from tests.unit.engine.tier_fakes import FakeNode
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model, write_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK_SIZE = 4
BLOCK_BYTES = 2 * 2 * 6 * 8 * BLOCK_SIZE * 4  # layers, key and value, heads, head_dim, float32
ROOT_KEY = BlockKey(bytes(16))
NUM_PROMPTS = 40
NUM_TURNS = {1: 3000, 3: 600}
"""By the number of ranks."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_tiny_model(
        "llama", num_attention_heads=6, num_key_value_heads=6, intermediate_size=48
    )
    return write_checkpoint(model, tmp_path_factory.mktemp("model") / "tiny")


class Case:
    """An engine with a pool of ``num_blocks``; with tiers if it has a node."""

    def __init__(self, checkpoint: Path, size: int, num_blocks: int, *, has_node: bool) -> None:
        config = EngineConfig(
            dtype="float32",
            block_size_tokens=BLOCK_SIZE,
            tensor_parallel_size=size,
            kv_cache_bytes=num_blocks * BLOCK_BYTES,
            max_num_seqs=3,
            max_num_batched_tokens=24,
            debug_poison_freed_blocks=True,
        )
        spec = EngineSpec(model="tiny", checkpoint=checkpoint, config=config)
        opened = open_checkpoint(checkpoint)
        geometry = engine_geometry(config, read_model_config(opened.config))

        def create(collectives: Collectives | None) -> ModelRunner:
            rank = RankSpec() if collectives is None else collectives.rank
            return create_runner(spec, rank, collectives).runner

        self.runner = create(None) if size == 1 else RankThreads(size, create)
        self.clock = FakeClock()
        engine_size = size_engine(config, opened)
        self.engine = Engine(
            config,
            geometry=geometry,
            num_blocks=engine_size.num_blocks,
            max_model_len=engine_size.max_model_len,
            vocab_size=VOCAB_SIZE,
            runner=self.runner,
            clock=self.clock,
        )
        self.node = FakeNode()
        if has_node:
            layout = image_layout(config, geometry, model_root_key(config, opened))
            self.node = FakeNode(num_images=160, layout=layout)
            self.engine.use_tiers(
                TierDesk(
                    self.node,
                    lambda arena: self.runner.attach_arena(arena, layout, SOCKET_PATH),
                    self.runner.detach_arena,
                    layout,
                    check_period=7,
                )
            )

    def turn(self, answers: dict[str, Answer]) -> None:
        self.engine.poll_tiers()
        if self.engine.has_work:
            collect(answers, self.engine.step().deltas)


def make_prompts(draw: random.Random) -> list[list[int]]:
    """Most begin like one before."""
    prompts: list[list[int]] = []
    for _ in range(NUM_PROMPTS):
        shared: list[int] = []
        if prompts and draw.random() < 0.7:
            source = draw.choice(prompts)
            shared = source[: draw.randrange(len(source) + 1)]
        own = [draw.randrange(3, VOCAB_SIZE) for _ in range(draw.randrange(1, 30))]
        prompts.append((shared + own)[:70])
    return prompts


def make_request(request_id: str, token_ids: list[int]) -> EngineRequest:
    keys: list[bytes] = list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE))
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    return EngineRequest(request_id, token_ids, ROOT_KEY, keys, sampling, 60.0)


def is_done(answers: dict[str, Answer], request_id: str) -> bool:
    return request_id in answers and answers[request_id].finish_reason is not None


def disturb(node: FakeNode, draw: random.Random) -> None:
    """Something that may happen to a node."""
    keys = list(node.images)
    match draw.randrange(60):
        case 0 if keys:
            node.corrupt(draw.choice(keys))
        case 1 if len(keys) > 1:
            node.swap(*draw.sample(keys, 2))
        case 2 if keys:
            for key in draw.sample(keys, len(keys) // 3):
                node.discard(key)
        case 3 if draw.random() < 0.2:
            node.go_down()
            node.come_up()


@pytest.fixture(params=NUM_TURNS)
def size(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def test_no_token_changes_whatever_happens_to_the_node(checkpoint: Path, size: int) -> None:
    draw = random.Random(size)
    prompts = make_prompts(draw)
    plain = Case(checkpoint, size, 4000, has_node=False)
    for number, prompt in enumerate(prompts):
        plain.engine.add(make_request(str(number), prompt))
    computed = run_to_end(plain.engine)
    expected = [computed[str(number)].token_ids for number in range(NUM_PROMPTS)]
    plain.runner.close()

    case = Case(checkpoint, size, 40, has_node=True)
    answers: dict[str, Answer] = {}
    asked: dict[str, int] = {}
    live: list[str] = []
    for turn in range(NUM_TURNS[size]):
        live = [name for name in live if not is_done(answers, name)]
        if len(live) < 5:
            number = draw.randrange(NUM_PROMPTS)
            asked[str(turn)] = number
            live.append(str(turn))
            case.engine.add(make_request(str(turn), prompts[number]))
        elif draw.random() < 0.05:
            case.engine.abort(draw.choice(live))
        disturb(case.node, draw)
        case.turn(answers)
    for _ in range(500):
        case.turn(answers)
    case.runner.close()
    for request_id, number in asked.items():
        answer = answers[request_id]
        assert answer.error is None
        if answer.finish_reason is FinishReason.ABORT:
            assert answer.token_ids == expected[number][: len(answer.token_ids)]
        else:
            assert answer.token_ids == expected[number]
    assert Counter(answer.finish_reason for answer in answers.values())[FinishReason.ABORT] > 5
    stores = [message for message in case.node.sent if isinstance(message, Store)]
    loads = [message for message in case.node.sent if isinstance(message, Loaded)]
    assert sum(len(store.images) for store in stores) > NUM_TURNS[size] // 2
    assert sum(load.num_images for load in loads) > NUM_TURNS[size] // 5
    assert any(load.bad_keys for load in loads)
