"""Every file in `configs/`: read, built, placed on a made-up node of 8 GPUs, its shapes loaded."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.serve._private.build_app import build_app
from ray.serve.config import AutoscalingConfig

from deployments.build import build_gateway, build_model
from deployments.config import ModelArgs
from deployments.gpus import GPUS
from deployments.model_root import NO_REPLICAS
from deployments.serve_file import ServeFile, read_serve_file
from engine.config import EngineConfig, RankSpec
from engine.memory_report import report_memory
from engine.meta_shard import measure_shard
from engine.model_size import model_size
from engine.models.registry import read_model_config
from engine.sizing import engine_geometry
from tests.quickstart import cached_checkpoint

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGURATIONS = sorted((REPOSITORY / "configs").glob("*.yaml"))
MODEL_CONFIGS = REPOSITORY / "tests" / "data" / "model_configs"
NUM_GPUS = 8
NUM_CPUS = 96
PLACEMENT_TIMEOUT_S = 60.0
USABLE_BYTES = GPUS["h100-80gb"].memory_bytes - 2e9
"""CUDA and its libraries have the rest for themselves."""
USABLE_SHARE_OF_RANKS = 0.9
"""NCCL's buffers come on top of it."""
_PRINT_GPUS = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', ''), end='')"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    # Ray leaves log files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def gpu_node() -> Iterator[None]:
    """This process is connected to a cluster that believes to have the resources of one node."""
    folder = tempfile.mkdtemp(prefix="hw-", dir="/tmp")  # Ray's Unix sockets need a short path
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("RAY_TMPDIR", "TMPDIR"):  # also where Ray notes the cluster's address
            patch.setenv(variable, folder)
        ray.init(
            address="local",
            num_cpus=NUM_CPUS,
            num_gpus=NUM_GPUS,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        try:
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


class _Replica:
    """Takes the place of one replica: its resources, without what it would run."""

    def visible_gpus(self) -> str:
        """As a child of the replica sees them, which is what a rank is."""
        command = [sys.executable, "-c", _PRINT_GPUS]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _replicas(file: ServeFile) -> list[dict[str, Any]]:
    """The actor options of every replica that there can be, through the builders."""
    applications = [
        *(("gateway", build_gateway(section.args)) for section in file.gateways),
        *((section.application, build_model(section.args)) for section in file.models),
    ]
    options = []
    for name, application in applications:
        for deployment in build_app(application, name=name).deployments:
            config = deployment._deployment_config
            autoscaling = config.autoscaling_config
            count = config.num_replicas if autoscaling is None else _most_replicas(autoscaling)
            options += [dict(deployment.ray_actor_options)] * count
    return options


def _most_replicas(autoscaling: AutoscalingConfig) -> int:
    return 0 if autoscaling == NO_REPLICAS else autoscaling.max_replicas


def _place(options: list[dict[str, Any]]) -> list[str]:
    """The GPUs that each replica sees; raises `GetTimeoutError` if they don't fit together."""
    actors = [ray.remote(_Replica).options(**item).remote() for item in options]
    try:
        seen: list[str] = ray.get(
            [actor.visible_gpus.remote() for actor in actors], timeout=PLACEMENT_TIMEOUT_S
        )
        return seen
    finally:
        for actor in actors:
            ray.kill(actor)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_all_replicas_of_a_configuration_find_a_place(path: Path, gpu_node: None) -> None:
    file = read_serve_file(path)
    assert file.faults == []
    assert file.gateways
    served = {route.name for section in file.gateways for route in section.config.models}
    assert served == {section.args.name for section in file.models}
    replicas = _replicas(file)
    num_replicas = sum(section.num_replicas for section in file.gateways) + len(file.autoscalers)
    num_replicas += sum(section.num_replicas for section in file.models)
    assert len(replicas) == num_replicas
    gpus = [gpu for seen in _place(replicas) for gpu in seen.split(",") if gpu]
    num_gpus = sum(s.args.reserved_gpus * s.num_replicas for s in file.models)
    assert len(gpus) == len(set(gpus)) == num_gpus


def test_a_replica_too_many_finds_no_place(gpu_node: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PLACEMENT_TIMEOUT_S", 3.0)
    with pytest.raises(ray.exceptions.GetTimeoutError):
        _place([{"num_cpus": 1, "num_gpus": 1}] * (NUM_GPUS + 1))


def test_a_replica_of_8_ranks_has_the_8_gpus_of_one_node_in_one_process(gpu_node: None) -> None:
    engine = EngineConfig(device="cuda", tensor_parallel_size=8)
    args = ModelArgs(name="m", source="hf:a/m", engine=engine)
    root = build_app(build_model(args), name="m")
    (options,) = [
        dict(deployment.ray_actor_options)
        for deployment in root.deployments
        if deployment.ray_actor_options.get("num_gpus")
    ]
    assert (options["num_cpus"], options["num_gpus"]) == (8, 8)
    (seen,) = _place([options])
    assert sorted(seen.split(",")) == [str(gpu) for gpu in range(8)]


def _hf_config(args: ModelArgs) -> dict[str, Any]:
    """config.json of a model: kept beside the tests where fetching it would fetch gigabytes."""
    kept = MODEL_CONFIGS / f"{args.name}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text("utf-8")))
    checkpoint = cached_checkpoint(args.source, name=args.name, sha256=args.source_sha256)
    return checkpoint.config


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_the_models_of_a_configuration_have_the_shapes_that_are_planned_for(path: Path) -> None:
    for args in (section.args for section in read_serve_file(path).models):
        hf_config = _hf_config(args)
        config = read_model_config(hf_config)
        geometry = engine_geometry(args.engine, config)
        num_ranks = args.engine.tensor_parallel_size
        num_blocks = args.engine.kv_cache_bytes // num_ranks // geometry.block_bytes
        max_len = min(args.engine.max_model_len or config.max_context_len, config.max_context_len)
        assert geometry.num_blocks_of(max_len) <= num_blocks, f"{args.name}: max_model_len"
        memory = report_memory(
            args.engine,
            hf_config,
            config,
            geometry,
            num_blocks=num_blocks,
            max_request_tokens=max_len,
        )
        built = measure_shard(
            config,
            RankSpec(0, num_ranks),
            geometry,
            num_blocks=num_blocks,
            dtype=args.engine.dtype,
        )
        assert built == (memory.weight_bytes, memory.kv_pool_bytes)
        if num_ranks == 1:
            size = model_size(config, dtype_bytes=geometry.bytes_per_element)
            assert built.weights == size.weight_bytes
        if args.reserved_gpus:
            assert memory.device_bytes <= USABLE_BYTES
        if num_ranks > 1:
            device_bytes = GPUS["h100-80gb"].memory_bytes
            assert memory.device_bytes <= USABLE_SHARE_OF_RANKS * device_bytes
