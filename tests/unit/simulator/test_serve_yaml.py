"""A `serve run` file is changed in one model's engine settings only."""

from pathlib import Path

import pytest
import yaml

from simulator.serve_yaml import read_serve_yaml
from simulator.tuning import TuningError

TWO_MODELS = """
http_options: {port: 8000}
applications:
  - {name: gateway, import_path: "deployments.build:build_gateway", args: {}}
  - name: a
    import_path: deployments.build:build_model
    args: {name: a, source: x, engine: {max_num_seqs: 3, quantization: int8, block_size_tokens: 32}}
  - name: b
    import_path: deployments.build:build_model
    args: {name: b, source: x, num_gpus: 1}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(TWO_MODELS)
    return path


def test_one_models_engine_is_changed(path: Path) -> None:
    base = read_serve_yaml(path, "a")
    assert (base.model, base.engine.max_num_seqs) == ("a", 3)
    changes = {"max_num_seqs": 9, "quantization": "none", "dtype": "bfloat16"}
    text = base.with_engine(changes, remark="tuned:\nwell")
    assert text.startswith("# tuned:\n# well\n")
    before, after = yaml.safe_load(TWO_MODELS), yaml.safe_load(text)
    # A default needs no line unless there is one that says otherwise.
    engine = {"max_num_seqs": 9, "quantization": "none", "block_size_tokens": 32}
    before["applications"][1]["args"]["engine"] = engine
    assert after == before


def test_ranks_get_a_device_each(path: Path) -> None:
    base = read_serve_yaml(path, "b")
    for size, expected in ((1, 1), (4, None)):
        text = base.with_engine({"tensor_parallel_size": size}, remark="")
        args = yaml.safe_load(text)["applications"][2]["args"]
        assert args.get("num_gpus") == expected


@pytest.mark.parametrize(
    ("content", "model", "complaint"),
    [
        (TWO_MODELS, None, "2 models: name one of a, b with --model"),
        (TWO_MODELS, "c", "no model 'c'"),
        ("applications: 3", None, "has no application of"),
        ("[", None, "is no YAML"),
        ("- x", None, "has no application of"),
        (
            "applications: [3, {import_path: 'deployments.build:build_model'}]",
            None,
            "has no application of",
        ),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, content: str, model: str | None, complaint: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    with pytest.raises(TuningError, match=complaint):
        read_serve_yaml(path, model)


def test_an_absent_file_and_a_wrong_setting_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="cannot be read"):
        read_serve_yaml(tmp_path / "absent.yaml", None)
    path.write_text(TWO_MODELS.replace("max_num_seqs: 3", "max_num_seqs: none"))
    base = read_serve_yaml(path, "a")
    with pytest.raises(TuningError, match=r"engine\.max_num_seqs"):
        _ = base.engine
