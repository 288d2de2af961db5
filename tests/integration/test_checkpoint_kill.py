"""A pull that is killed at any moment leaves nothing half-valid, and the next one finishes it.

A GGUF model from an object store on loopback: it is downloaded, hashed, converted and committed.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from benchmarks.object_store import BUCKET, object_store
from engine.checkpoints.errors import MissingCheckpoint
from engine.checkpoints.inventory import list_models, remove_model
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint
from tests.checkpoint_hashes import verify

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HIDDEN, INNER, LAYERS, HEADS = 256, 768, 12, 4
TOKENS = ["<|endoftext|>", *sorted(ByteLevel.alphabet()), "he"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("objects")
    write_gguf(folder / "model.gguf")
    with object_store(folder) as url:
        yield url


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, *[1] * (len(TOKENS) - 1)])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        block |= {f"attn_{part}": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    numbers = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numbers.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def start_pull(store: str, home: Path) -> subprocess.Popen[bytes]:
    credentials = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    source = f"s3://{BUCKET}/model.gguf"
    return subprocess.Popen(
        [sys.executable, "-m", "deployments.cli", "models", "pull", source],
        env={
            **os.environ,
            **credentials,
            "AWS_ENDPOINT_URL": store,
            "AWS_DEFAULT_REGION": "us-east-1",
            "HEADWATER_HOME": str(home),
        },
        stdout=subprocess.DEVNULL,
    )


def pulled(store: str, home: Path) -> Checkpoint:
    with start_pull(store, home) as process:
        assert process.wait(timeout=60) == 0
    checkpoint = open_checkpoint(checkpoint_path(home, "model"))
    verify(checkpoint)
    return checkpoint


def kill_when(process: subprocess.Popen[bytes], home: Path, pattern: str, delay_s: float) -> None:
    """Kill the pull a little after a file of that pattern has appeared."""
    root = home / "models" / ".staging" / "model"
    while process.poll() is None and not any(root.glob(pattern)):
        time.sleep(0.0005)
    time.sleep(delay_s)
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "pattern",
    [
        "lock",
        "downloads/*/partial/*",
        "downloads/*/complete/*",
        "new/config.json",
        "new/model.safetensors",
        "new/headwater.json",
    ],
)
def test_a_pull_killed_at_any_stage_is_finished_by_the_next(
    store: str, home: Path, pattern: str
) -> None:
    moments = random.Random(pattern)
    for _ in range(2):
        kill_when(start_pull(store, home), home, pattern, moments.uniform(0, 0.03))
        try:
            verify(open_checkpoint(checkpoint_path(home, "model")))
        except MissingCheckpoint:
            continue  # all or nothing: there must not be a corrupt one
    pulled(store, home)
    staging = home / "models" / ".staging" / "model"
    assert [path.name for path in staging.iterdir()] == ["lock"]


def test_pulls_of_one_name_wait_for_each_other(store: str, home: Path) -> None:
    processes = [start_pull(store, home) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    verify(open_checkpoint(checkpoint_path(home, "model")))


def test_a_removal_waits_for_the_pull_and_takes_all(store: str, home: Path) -> None:
    with start_pull(store, home) as process:
        while not list_models(home):
            assert process.poll() is None
            time.sleep(0.001)
        thread = threading.Thread(target=remove_model, args=(home, "model"))
        thread.start()
        process.wait(timeout=60)  # a failure if the model is gone before it could open it
        thread.join()
    assert list_models(home) == []
    pulled(store, home)
