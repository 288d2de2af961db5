"""Pulling from the Hugging Face hub, by huggingface_hub itself, against a small hub on loopback.

Each pull is a process of its own, as the library reads its environment when it is imported.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint
from tests.checkpoint_hashes import verify
from tests.integration.hub_server import Hub, running_hub
from tests.unit.engine.checkpoints.published import publish, write_json

pytestmark = pytest.mark.integration

MIB = 1 << 20
SHARD_BYTES = 10 * MIB
RUN = """
import os, resource, sys
from deployments.cli import main
limit = int(os.environ.get("LARGEST_FILE_BYTES", resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(main(["models", *sys.argv[1:]]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hub]:
    shard_bytes = getattr(request, "param", SHARD_BYTES)
    folder = publish(tmp_path / "published", num_shards=2, shard_bytes=shard_bytes)
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with running_hub(folder) as hub:
        yield hub


def start(hub: Hub, home: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Run `headwater models` in a process of its own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments],
        env={
            **inherited,
            "HEADWATER_HOME": str(home),
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home / "hf"),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_pull(hub: Hub, home: Path, source: str, **environment: str) -> subprocess.Popen[str]:
    return start(hub, home, "pull", source, "--name", "model", **environment)


def pulled(hub: Hub, home: Path, source: str = "hf:org/model", **environment: str) -> Checkpoint:
    process = start_pull(hub, home, source, **environment)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.strip() == str(checkpoint_path(home, "model"))
    return open_checkpoint(checkpoint_path(home, "model"))


def refusal(hub: Hub, home: Path, source: str = "hf:org/model", **environment: str) -> str:
    """The one line that a failed pull says."""
    process = start_pull(hub, home, source, **environment)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert errors.count("\n") == 1
    return errors


def test_a_repository_becomes_a_checkpoint_without_its_code(hub: Hub, home: Path) -> None:
    checkpoint = pulled(hub, home)

    verify(checkpoint)
    assert checkpoint.manifest.source == "hf:org/model"
    assert checkpoint.manifest.source_stamp == hub.commit
    assert {"modeling.py", "pytorch_model.bin"}.isdisjoint(checkpoint.manifest.files)
    for path in checkpoint.weights_paths:
        assert path.read_bytes() == (hub.folder / path.name).read_bytes()


def test_a_second_pull_brings_nothing_unless_the_branch_has_moved(hub: Hub, home: Path) -> None:
    first = pulled(hub, home)
    hub.sent_bytes.clear()
    assert pulled(hub, home) == first
    assert not hub.sent_bytes

    hub.commit = "d" * 40
    assert pulled(hub, home).manifest.source_stamp == hub.commit


def test_a_pinned_commit_that_is_here_needs_no_hub(hub: Hub, home: Path) -> None:
    source = f"hf:org/model@{hub.commit}"
    first = pulled(hub, home, source)
    assert pulled(hub, home, source, HF_HUB_OFFLINE="1") == first


def test_a_hub_that_is_away_does_not_stop_a_model_that_is_here(hub: Hub, home: Path) -> None:
    first = pulled(hub, home)
    assert pulled(hub, home, HF_ENDPOINT="http://127.0.0.1:9") == first


def test_connections_that_break_and_addresses_that_expire_cost_nothing(
    hub: Hub, home: Path
) -> None:
    hub.num_failures, hub.expires = 3, True
    verify(pulled(hub, home))


def test_the_token_reaches_the_hub_but_not_its_storage(hub: Hub, home: Path) -> None:
    hub.token = "hf_secret"
    verify(pulled(hub, home, HF_TOKEN="hf_secret"))
    assert hub.storage_tokens == []


def test_a_file_that_is_not_what_its_hash_says_is_refused(hub: Hub, home: Path) -> None:
    hub.damaged = "model-00002-of-00002.safetensors"
    assert "model-00002-of-00002.safetensors arrived with sha256" in refusal(hub, home)
    hub.damaged = None
    verify(pulled(hub, home))


@pytest.mark.parametrize("hub", [80 * MIB], indirect=True)
def test_a_killed_pull_is_continued(hub: Hub, home: Path) -> None:
    hub.delay_s = 0.005
    process = start_pull(hub, home, "hf:org/model")
    while hub.sent_bytes.total() < 120 * MIB:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not checkpoint_path(home, "model").exists()

    hub.delay_s = 0.0
    hub.sent_bytes.clear()
    verify(pulled(hub, home))
    assert hub.sent_bytes.total() < 120 * MIB


@pytest.mark.parametrize("hub", [40 * MIB], indirect=True)
def test_ctrl_c_ends_a_pull_at_once_with_one_line(hub: Hub, home: Path) -> None:
    hub.delay_s = 0.05
    process = start_pull(hub, home, "hf:org/model")
    while hub.sent_bytes.total() < MIB:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=10)
    assert (process.returncode, output) == (130, "")
    assert errors == "stopped; what a pull has downloaded is kept for the next one\n"


def test_a_model_that_cannot_run_is_refused_before_its_weights_come(hub: Hub, home: Path) -> None:
    write_json(hub.folder / "config.json", {"model_type": "mamba"})
    assert "'mamba' is not supported" in refusal(hub, home)
    assert not any(name.endswith(".safetensors") for name in hub.sent_bytes)


def test_a_disk_that_takes_no_more_is_one_line_and_what_arrived_is_kept(
    hub: Hub, home: Path
) -> None:
    line = refusal(hub, home, LARGEST_FILE_BYTES=str(9 * MIB))
    assert "File too large" in line
    assert "Check room and permissions" in line
    assert not checkpoint_path(home, "model").exists()

    before = hub.sent_bytes["config.json"]  # it comes before the weights, whichever of these fails
    verify(pulled(hub, home))
    assert hub.sent_bytes["config.json"] == before > 0


def test_a_repository_is_inspected_without_its_weights(hub: Hub, home: Path) -> None:
    process = start(hub, home, "inspect", "hf:org/model", "--json")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    report = json.loads(output)
    assert (report["architecture"], report["source"]) == ("llama", "hf:org/model")
    assert report["has_chat_template"] is True
    assert not any(name.endswith((".safetensors", "tokenizer.json")) for name in hub.sent_bytes)


def test_one_gguf_file_of_a_repository_is_asked_for_by_name(hub: Hub, home: Path) -> None:
    for path in hub.folder.glob("*.safetensors*"):
        path.unlink()
    for name in ("q4.gguf", "q8.gguf"):
        (hub.folder / name).write_bytes(b"GGUF and then nonsense")
    assert "name the one to pull, hf:org/model/q4.gguf" in refusal(hub, home)
    assert "not a sound GGUF file" in refusal(hub, home, "hf:org/model/q8.gguf")
    assert set(hub.sent_bytes) == {"q8.gguf"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:org/other", "the hub has no model org/other, or it is private"),
        ("hf:org/model@v2", "no revision 'v2'"),
        ("hf:org/model/other.gguf", "no file other.gguf"),
        ("hf:model", "write it as hf:org/name"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    hub: Hub, home: Path, source: str, message: str
) -> None:
    assert message in refusal(hub, home, source)


def test_a_gated_model_says_what_to_do(hub: Hub, home: Path) -> None:
    hub.gated = True
    assert "accept its terms" in refusal(hub, home)


def test_a_hub_that_is_switched_off_or_away_is_said_in_one_line(hub: Hub, home: Path) -> None:
    assert "HF_HUB_OFFLINE" in refusal(hub, home, HF_HUB_OFFLINE="1")
    assert "Check the network" in refusal(hub, home, HF_ENDPOINT="http://127.0.0.1:9")
