"""A replay on a paced engine: requests come when they shall, and each token is stamped."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.offline_engine import OfflineEngine
from deployments.replay_run import replay
from engine.config import EngineConfig, PacedConfig
from engine.errors import EngineError
from engine.replay_file import ReplayRequest
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

pytestmark = pytest.mark.integration

STEP_S = 0.002


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "tiny"
    write_checkpoint(make_tiny_model("llama"), folder)
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[OfflineEngine]:
    paced = PacedConfig(step_base_s=STEP_S, per_decode_s=0, per_prefill_token_s=0)
    engine = OfflineEngine("tiny", checkpoint, EngineConfig(runner="paced", paced=paced))
    yield engine
    engine.close()


def test_every_answer_takes_its_steps_and_none_begins_early(engine: OfflineEngine) -> None:
    waits: list[float] = []

    def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        time.sleep(wait_s)

    requests = [ReplayRequest(0.0, 20, 5), ReplayRequest(0.0, 9, 1), ReplayRequest(0.1, 30, 3)]
    answers = replay(engine, requests, sleep=sleep)
    assert [answer.request for answer in answers] == [requests[1], requests[0], requests[2]]
    for answer in answers:
        request = answer.request
        assert answer.first_token_s >= request.arrival_s + STEP_S
        num_later = request.num_answer_tokens - 1
        assert answer.end_s >= answer.first_token_s + 0.99 * num_later * STEP_S
    assert len(waits) == 1
    assert 0 < waits[0] < 0.1


def test_a_request_that_does_not_fit_ends_the_replay(engine: OfflineEngine) -> None:
    with pytest.raises(EngineError, match="at most 256"):
        replay(engine, [ReplayRequest(0.0, 300, 3)])
