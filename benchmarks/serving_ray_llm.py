"""ray.serve.llm on this machine alone, as Ray's documentation builds it: a peer of
`benchmarks.serving`.

Runs in the peer's own environment, by its path: it must import nothing of this project. Ends, and
its Ray with it, on SIGTERM or when standard input closes.
"""

import argparse
import sys
from pathlib import Path

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

NUM_CPUS = 4
"""Nominal: engine, server and ingress ask for as many, however few cores there are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-folder", type=Path, required=True)
    parser.add_argument("--model-id", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    options = parser.parse_args()
    ray.init(address="local", num_cpus=NUM_CPUS, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    config = LLMConfig(
        model_loading_config={
            "model_id": options.model_id,
            "model_source": str(options.model_folder),
        },
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 2}]},
        deployment_config={"num_replicas": 1, "max_ongoing_requests": 1000},
        engine_kwargs={
            "dtype": options.dtype,
            "max_model_len": options.max_model_len,
            "tensor_parallel_size": 1,
            "distributed_executor_backend": "mp",
        },
    )
    serve.run(build_openai_app({"llm_configs": [config]}), blocking=False)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
