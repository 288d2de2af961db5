"""A scheduler without an engine or a runner around it."""

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.messages import EngineRequest
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step import SampledToken, StepPlan, StepResult
from tests.unit.engine.fakes import make_config, make_geometry, make_request

TOKEN = 7


class Harness:
    """A scheduler whose runner always answers ``TOKEN``."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        num_blocks: int = 64,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        config = config or make_config()
        self.blocks = BlockManager(
            num_blocks, make_geometry(windows), prefix_caching=config.prefix_caching
        )
        self.scheduler = Scheduler(config, self.blocks)

    def add(self, name: str, token_ids: list[int], max_tokens: int = 100) -> Sequence:
        [sequence] = self.add_request(make_request(name, token_ids, max_tokens))
        return sequence

    def add_samples(
        self, name: str, token_ids: list[int], num_samples: int, max_tokens: int = 100
    ) -> list[Sequence]:
        return self.add_request(make_request(name, token_ids, max_tokens, num_samples=num_samples))

    def add_request(self, request: EngineRequest) -> list[Sequence]:
        max_len = len(request.token_ids) + request.sampling.max_tokens
        samples = [
            Sequence(request, deadline_s=1e9, max_len=max_len, index=index)
            for index in range(request.num_samples)
        ]
        self.scheduler.add(samples)
        return samples

    def step(self, bad_slots: tuple[int, ...] = ()) -> StepPlan:
        """``bad_slots`` have no valid logits."""
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.commit(plan, answer(plan, bad_slots))
        self.scheduler.check_integrity()
        return plan


def answer(plan: StepPlan, bad_slots: tuple[int, ...] = ()) -> StepResult:
    slots = [slot for entry in plan.scheduled for slot in entry.sampling_slots]
    sampled = [SampledToken(slot, -1 if slot in bad_slots else TOKEN) for slot in slots]
    return StepResult(plan.step_id, tuple(sampled))


def prompt(start: int, num_tokens: int) -> list[int]:
    return list(range(1000 * start, 1000 * start + num_tokens))
