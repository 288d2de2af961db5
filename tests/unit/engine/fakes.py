"""Small engines, requests and runners for the tests of this folder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineConfig, PacedConfig
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import (
    EngineRequest,
    FinishReason,
    SamplingParams,
    ServiceClass,
    TokenDelta,
    TokenLogprobs,
    Usage,
)
from engine.paced_runner import PacedRunner
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult

BLOCK_SIZE = 4
VOCAB_SIZE = 50
EOS = 2
ROOT_KEY = root_key(KeySalt("weights", "float32", BLOCK_SIZE, "layer-kv-slot-head"))


def make_request(
    request_id: str,
    token_ids: Sequence[int],
    max_tokens: int = 4,
    *,
    stop_token_ids: tuple[int, ...] = (),
    seed: int = 0,
    timeout_s: float = 60.0,
    num_samples: int = 1,
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    service_class: ServiceClass = ServiceClass.STANDARD,
    age_s: float = 0.0,
) -> EngineRequest:
    sampling = SamplingParams(
        max_tokens,
        seed=seed,
        stop_token_ids=stop_token_ids,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )
    return EngineRequest(
        request_id,
        list(token_ids),
        ROOT_KEY,
        list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE)),
        sampling,
        timeout_s,
        num_samples,
        service_class,
        age_s,
    )


def cut_request(request: EngineRequest, generated_ids: Sequence[int]) -> EngineRequest:
    """What goes to another engine when the first was lost after ``generated_ids``."""
    token_ids = [*request.token_ids, *generated_ids]
    return msgspec.structs.replace(
        request,
        token_ids=token_ids,
        block_keys=list(block_keys(ROOT_KEY, token_ids, BLOCK_SIZE)),
        num_generated_tokens=len(generated_ids),
    )


def make_geometry(windows: Sequence[int | None] = (None,)) -> KvGeometry:
    """One layer per KV group."""
    groups = tuple(KvGroup((layer,), window) for layer, window in enumerate(windows))
    return KvGeometry(
        groups, num_kv_heads=1, head_dim=1, block_size_tokens=BLOCK_SIZE, bytes_per_element=2
    )


def make_runner(
    num_blocks: int,
    windows: Sequence[int | None] = (None,),
    *,
    max_step_tokens: int | None = None,
) -> PacedRunner:
    return PacedRunner(
        PacedConfig(max_step_tokens=max_step_tokens),
        num_blocks=num_blocks,
        block_size_tokens=BLOCK_SIZE,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[EOS],
        windows=windows,
        sleep=lambda _: None,
    )


def make_config(
    *,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    min_prefill_chunk_tokens: int = 4,
    prefix_caching: bool = True,
    kv_admission: Literal["predicted", "worst_case", "optimistic"] = "optimistic",
) -> EngineConfig:
    """Optimistic: tests of what happens without a free block must get there."""
    return EngineConfig(
        block_size_tokens=BLOCK_SIZE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        min_prefill_chunk_tokens=min(min_prefill_chunk_tokens, max_num_batched_tokens),
        prefix_caching=prefix_caching,
        kv_admission=kv_admission,
    )


@dataclass
class FakeClock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class RecordingRunner:
    """Passes every plan on and keeps it."""

    inner: ModelRunner
    plans: list[StepPlan] = field(default_factory=list)

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return self.inner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.inner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self.inner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self.inner.detach_arena()

    def close(self) -> None:
        self.inner.close()


def make_engine(
    config: EngineConfig | None = None,
    *,
    num_blocks: int = 64,
    max_model_len: int = 256,
    windows: Sequence[int | None] = (None,),
    runner: ModelRunner | None = None,
    clock: FakeClock | None = None,
) -> Engine:
    return Engine(
        config or make_config(),
        geometry=make_geometry(windows),
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        runner=runner or make_runner(num_blocks, windows),
        clock=clock or FakeClock(),
    )


@dataclass
class Answer:
    """All deltas of one sample, joined."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    first_usage: Usage | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None


def collect(answers: dict[str, Answer], deltas: Iterable[TokenDelta]) -> None:
    """Add ``deltas``; nothing may follow the finish reason of a sample.

    Sample 0 stands under the request's id, sample 1 under ``id#1`` and so on.
    """
    for delta in deltas:
        answer = answers.setdefault(sample_name(delta.request_id, delta.index), Answer())
        assert answer.finish_reason is None, f"{delta.request_id} goes on after its end"
        if answer.first_usage is None:
            assert delta.usage is not None, "the first delta carries no usage"
            answer.first_usage = delta.usage
            answer.prompt_logprobs = delta.prompt_logprobs
        else:
            assert delta.prompt_logprobs is None, "prompt log probabilities come twice"
        answer.logprobs += delta.logprobs or []
        answer.token_ids += delta.token_ids
        answer.finish_reason = delta.finish_reason
        answer.usage = delta.usage
        answer.error = delta.error


def sample_name(request_id: str, index: int) -> str:
    return request_id if index == 0 else f"{request_id}#{index}"


def run_to_end(engine: Engine, answers: dict[str, Answer] | None = None) -> dict[str, Answer]:
    """Step until nothing is left to do; blocks are checked after every step."""
    answers = {} if answers is None else answers
    num_steps = 0
    while engine.has_work:
        collect(answers, engine.step().deltas)
        engine.check_integrity()
        num_steps += 1
        assert num_steps < 2000, "the engine makes no progress"
    return answers


def answers_alone(request: EngineRequest, max_model_len: int = 256) -> dict[str, Answer]:
    """What ``request`` gets from an engine of its own: no neighbour, no cache, no chunking."""
    config = make_config(max_num_batched_tokens=1024, prefix_caching=False)
    engine = make_engine(config, max_model_len=max_model_len)
    engine.add(request)
    return run_to_end(engine)


def answer_alone(request: EngineRequest, max_model_len: int = 256) -> Answer:
    """The same of its first sample."""
    return answers_alone(request, max_model_len)[request.request_id]
