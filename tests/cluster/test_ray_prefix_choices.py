"""Our function of Ray's prefix router beside Ray's own class and tree, on the same requests."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import ray
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
from ray.serve._private.common import DeploymentID, ReplicaID

from app.routing.candidate import Candidate, HeldPrefix, RouteRequest
from benchmarks.routing_ray import BlockText
from benchmarks.routing_workload import CHAT
from engine.messages import LoadView
from simulator.policies.ray_prefix import ray_prefix
from simulator.told_record import ToldRecord

NUM_REPLICAS = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    # Ray leaves log files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@dataclass(frozen=True)
class Replica:
    """What the router reads of a running replica."""

    replica_id: ReplicaID
    max_ongoing_requests: int = 100


@dataclass(frozen=True)
class Prompt:
    prompt: str


@dataclass(frozen=True)
class Pending:
    args: list[Prompt]


class Router(PrefixCacheAffinityRouter):  # type: ignore[misc]
    """Ray's, without the deployment around it: queues are given instead of asked for."""

    def __init__(self, replicas: list[Replica], tree: Any) -> None:
        self._replicas = {replica.replica_id: replica for replica in replicas}
        self._use_replica_queue_len_cache = True
        self._replica_queue_len_cache: dict[ReplicaID, int] = {}
        self.initialize_state(tree_actor=tree)

    async def best(self, text: str, queues: list[int]) -> set[int]:
        """The places that Ray would draw from: the shortest queues of its candidates."""
        replicas = list(self._replicas.values())
        ids = [replica.replica_id for replica in replicas]
        self._replica_queue_len_cache = dict(zip(ids, queues, strict=True))
        (candidates,) = await self._prefix_match_best_replicas(Pending([Prompt(text)]), replicas)
        places = [ids.index(candidate.replica_id) for candidate in candidates]
        shortest = min(queues[place] for place in places)
        return {place for place in places if queues[place] == shortest}


@pytest.fixture(scope="module")
def tree() -> Iterator[Any]:
    folder = tempfile.mkdtemp(prefix="hw-", dir="/tmp")  # Ray's Unix sockets need a short path
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("RAY_TMPDIR", "TMPDIR"):
            patch.setenv(variable, folder)
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        try:
            yield PrefixTreeActor.remote()
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


async def test_ours_chooses_what_rays_router_would(tree: Any) -> None:
    replicas = [Replica(ReplicaID(f"e{i}", DeploymentID("model"))) for i in range(NUM_REPLICAS)]
    names = [replica.replica_id.to_full_id_str() for replica in replicas]
    ray.get(tree.add_tenants.remote(names, 0.0))
    router = Router(replicas, tree)
    workload = CHAT.busy_workload("chat", 300, 24_000, 0.6, seed=3)
    told, texts, draw = ToldRecord(10**9, workload.block_size_tokens), BlockText(), random.Random(0)
    for _ in names:
        told.add_replica()
    num_compared = num_spread = 0
    for number, request in enumerate(workload.requests):
        if not request.block_keys:
            continue
        queues = [draw.randrange(6) for _ in names]
        candidates = [
            Candidate(
                name,
                LoadView(num_running=queue),
                workload.block_size_tokens,
                HeldPrefix(),
                queue,
                0,
                0,
                0,
            )
            for name, queue in zip(names, queues, strict=True)
        ]
        seen = told.add_to(candidates, range(NUM_REPLICAS), request.block_keys)
        num_tokens = len(request.block_keys) * workload.block_size_tokens
        chosen = ray_prefix(RouteRequest(num_tokens, rotation=number), seen).candidate.engine_id
        place, text = names.index(chosen), texts.of(request)

        expected = await router.best(text, queues)

        assert place in expected
        num_compared += 1
        num_spread += len(expected) < NUM_REPLICAS
        told.note(request.arrival_s, place, request)
        router.on_request_routed(Pending([Prompt(text)]), replicas[place].replica_id, None)
    assert num_compared > 200
    assert num_spread > 200
