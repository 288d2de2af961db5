"""Two nodes, on each an engine replica with small KV pools and a node cache; asked over HTTP."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from ray.cluster_utils import Cluster

from deployments.environment import child_environment
from deployments.local_environment import free_port
from tests.cluster.local import Model, serve_config
from tests.cluster.processes import replicas, wait_until

MODEL = Model("alpha", num_replicas=2, max_num_seqs=4, resources=(("engine_node", 1.0),))
NODE_CACHE = "ray::NodeCacheActor"
LOOPBACK = "127.0.0.1"
MAX_IDLE_S = 12.0
BLOCK_BYTES = 360 * 1024
"""Of the quickstart's model, whose tokenizer and shapes a paced replica has."""
POOL_TOKENS = 2880
PROMPT_TOKENS = 1000
HOST_PROMPTS = 12
"""As many fit into a node's memory."""
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer, and what the engine says of it."""

    engine: str
    cached_tokens: int
    source: str | None
    """Where the gateway wanted it loaded from."""
    restored: dict[str, int]
    """Tokens, by where they lay."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """A running one."""

    url: str
    client: httpx.Client
    serve_file: Path
    address: str
    """Of the cluster."""

    def ask(self, prompt: Sequence[int], *, num_tokens: int = 2) -> Asked:
        """Wait for the whole answer."""
        body = {"model": MODEL.name, "prompt": list(prompt), "max_tokens": num_tokens}
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        found = self.client.get(f"/debug/requests/{answer.json()['id']}")
        assert found.status_code == 200, found.text
        engine = found.json()["engines"][-1]
        details = answer.json()["usage"].get("prompt_tokens_details") or {}
        kinds = [event["kind"] for event in engine["events"]]
        sources = [kind.removeprefix("source_") for kind in kinds if kind.startswith("source_")]
        return Asked(
            engine["engine"],
            details.get("cached_tokens", 0),
            sources[0] if sources else None,
            engine["restored_tokens"],
        )

    def ask_all(self, prompts: Sequence[Sequence[int]], *, num_tokens: int) -> list[Asked]:
        """At once."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.ask(prompt, num_tokens=num_tokens), prompts))

    def samples(self, name: str) -> dict[tuple[str, ...], float]:
        """A metric's values, summed over replicas, by all other labels' values."""
        sums: dict[tuple[str, ...], float] = {}
        for sample in self._samples(name):
            labels = {k: v for k, v in sample.labels.items() if k not in _REPLICA_LABELS}
            key = tuple(labels.values())
            sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def num_pages_with(self, name: str) -> int:
        """Replicas that show a metric."""
        return len({sample.labels["replica"] for sample in self._samples(name)})

    def _samples(self, name: str) -> list[Sample]:
        answer = self.client.get("/metrics")
        if answer.status_code != 200:  # nothing is there yet
            return []
        families = text_string_to_metric_families(answer.text)
        return [sample for family in families for sample in family.samples if sample.name == name]

    def engines(self) -> set[str]:
        """That take requests."""
        return {engine for (engine,) in self.samples("headwater:engine_credits")}

    def remove_model(self) -> None:
        """The gateway stays."""
        config = yaml.safe_load(self.serve_file.read_text("utf-8"))
        del config["applications"][1]
        self.serve_file.write_text(yaml.safe_dump(config), "utf-8")
        _serve_run(self.serve_file, self.address)

    def wait_for_engines(self, num_engines: int, *, timeout_s: float) -> None:
        wait_until(
            lambda: sum(self.samples("headwater:engines_accepting").values()) == num_engines,
            timeout_s=timeout_s,
            what=f"{num_engines} engines are there",
        )


_REPLICA_LABELS = frozenset({"replica", "role", "model_name"})


def prompt_of(number: int) -> list[int]:
    """Token ids that no other ``number`` begins with."""
    return [1000 + number, *(1000 + (7 * position) % 997 for position in range(PROMPT_TOKENS - 1))]


def node_caches() -> list[psutil.Process]:
    """Of all clusters below this process."""
    return replicas(os.getpid(), NODE_CACHE)


@contextmanager
def running_tiers(patch: pytest.MonkeyPatch) -> Iterator[Tiers]:
    """A gateway on the first of two nodes."""
    folder = Path(tempfile.mkdtemp(prefix="hw-", dir="/tmp"))  # Ray's Unix sockets: a short path
    for variable in ("RAY_TMPDIR", "TMPDIR"):  # also where Ray notes the cluster's address
        patch.setenv(variable, str(folder))
    cluster = Cluster()
    try:
        for resources in ({"engine_node": 1, "gateway_node": 1}, {"engine_node": 1}):
            cluster.add_node(node_ip_address=LOOPBACK, num_cpus=2, resources=resources)
        port = free_port()
        path = folder / "serve.yaml"
        path.write_text(yaml.safe_dump(_serve_config(folder, port)), "utf-8")
        _serve_run(path, str(cluster.address))
        url = f"http://{LOOPBACK}:{port}"
        with httpx.Client(base_url=url, timeout=60.0) as client:
            tiers = Tiers(url, client, path, str(cluster.address))
            tiers.wait_for_engines(2, timeout_s=60)
            yield tiers
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _serve_config(folder: Path, port: int) -> dict[str, Any]:
    config = serve_config([MODEL], port=port, num_gateways=1)
    gateway, model = config["applications"]
    gateway["args"]["resources"] = {"gateway_node": 1.0}
    engine: dict[str, Any] = model["args"]["engine"]
    engine["kv_cache_bytes"] = POOL_TOKENS // 16 * BLOCK_BYTES
    engine["max_model_len"] = 2048
    engine["paced"] = {
        "step_base_s": MODEL.step_s,
        "per_decode_s": 0,
        "per_prefill_token_s": 0.0003,
        "block_bytes": BLOCK_BYTES,
    }
    model["args"]["node_cache"] = {
        "host_bytes": HOST_PROMPTS * PROMPT_TOKENS // 16 * BLOCK_BYTES,
        # Of two caches on one machine only the first gets the folder; the other does without.
        "disks": [{"path": str(folder / "kv"), "max_bytes": 1024 * _MIB}],
        "max_idle_s": MAX_IDLE_S,
    }
    return config


def _serve_run(path: Path, address: str) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "ray.serve.scripts", "run", str(path)),
            *("--address", address, "--non-blocking"),
        ],
        env=child_environment({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}),
        check=True,
        capture_output=True,
        timeout=120,
    )
