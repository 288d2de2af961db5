"""A step without memory is told from one that fails, and the runner goes on after it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.attention import create_attention
from engine.attention.base import AttentionBackend, RaggedBatch, StepAttention
from engine.errors import StepOutOfMemory
from engine.kv_pool import KvPool
from engine.memory_errors import is_out_of_memory
from engine.messages import SamplingParams
from engine.row_outputs import SampledOutputs
from engine.step import Admission, ScheduledSequence, StepPlan
from engine.step_model import TorchStepModel
from engine.torch_runner import TorchRunner
from tests.unit.engine.paged_model import CPU, load_tiny
from tests.unit.engine.tiny_models import make_tiny_model


def allocate_too_much() -> Tensor:
    return torch.empty(2**60, dtype=torch.int8)


def fail_on_accelerator() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def fail_in_python() -> None:
    raise MemoryError


def fail_otherwise() -> None:
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


@pytest.mark.parametrize("fail", [allocate_too_much, fail_on_accelerator, fail_in_python])
def test_every_way_to_run_out_of_memory_is_known(fail: Callable[[], object]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        fail()
    assert is_out_of_memory(raised.value)


def test_other_errors_are_none() -> None:
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert not is_out_of_memory(ValueError("not enough memory"))


class FailingAttention:
    """Does ``next_failure`` once, in the middle of a step."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend
        self.next_failure: Callable[[], object] | None = None

    def prepare(self, batch: RaggedBatch) -> StepAttention:
        attend = self._backend.prepare(batch)

        def attend_or_fail(query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
            output = attend(query, new_kv, kv)
            failure, self.next_failure = self.next_failure, None
            if failure is not None:
                failure()
            return output

        return attend_or_fail


@pytest.fixture
def attention_and_runner(tmp_path: Path) -> tuple[FailingAttention, TorchRunner]:
    model = load_tiny(make_tiny_model("llama"), tmp_path)
    geometry = model.config.kv_geometry(block_size_tokens=4, bytes_per_element=4)
    attention = FailingAttention(
        create_attention("cpu", CPU, geometry, scale=model.config.attention_scale)
    )
    kv_pool = KvPool(geometry, 8, dtype=torch.float32, device=CPU)
    runner = TorchRunner(
        model=TorchStepModel(model, attention, geometry, kv_pool.layers, CPU),
        geometry=geometry,
        kv_pool=kv_pool,
        outputs=SampledOutputs(model.head, 2, CPU),
        max_num_seqs=2,
        max_request_tokens=32,
        is_poisoning=False,
    )
    return attention, runner


def plan_of(step_id: int) -> StepPlan:
    """Releases every slot, then computes a prompt from its beginning."""
    sampling = SamplingParams(4, temperature=0.0, repetition_penalty=1.5)
    return StepPlan(
        step_id=step_id,
        released_slots=(0, 1),
        freed_block_ids=(),
        block_copies=(),
        admissions=(Admission(0, sampling, ((5,),), num_prompt_tokens=3),),
        scheduled=(ScheduledSequence(0, 0, (5, 6, 7), False, sampling_slots=(0,)),),
    )


@pytest.mark.parametrize("fail", [allocate_too_much, fail_on_accelerator, fail_in_python])
def test_the_runner_goes_on_after_a_step_without_memory(
    attention_and_runner: tuple[FailingAttention, TorchRunner], fail: Callable[[], object]
) -> None:
    attention, runner = attention_and_runner
    expected = runner.execute(plan_of(1)).sampled
    attention.next_failure = fail
    with pytest.raises(StepOutOfMemory, match="a step of 3 tokens") as raised:
        runner.execute(plan_of(2))
    assert raised.value.__context__ is None  # or its traceback would hold the tensors of the step
    assert runner.execute(plan_of(3)).sampled == expected


def test_other_failures_pass(
    attention_and_runner: tuple[FailingAttention, TorchRunner],
) -> None:
    attention, runner = attention_and_runner
    attention.next_failure = fail_otherwise
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        runner.execute(plan_of(1))
