"""`headwater models inspect --tp`: a model on devices, without any of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.cli import main
from deployments.device_plan import DevicePlan, PlanOptions, plan_devices
from deployments.gpus import GPUS
from engine.config import RankSpec
from engine.models.model_config import ModelConfig
from engine.models.registry import read_model_config
from engine.models.shard import shard_model, shard_parameters

CONFIG = Path(__file__).parents[2] / "data" / "model_configs" / "llama-3.1-70b-instruct.json"
H100 = GPUS["h100-80gb"].memory_bytes
GB = 10**9


@pytest.fixture(scope="module")
def llama() -> ModelConfig:
    return read_model_config(json.loads(CONFIG.read_text("utf-8")))


def plan(model: ModelConfig, *contexts: int, **options: Any) -> DevicePlan:
    values: dict[str, Any] = {"tensor_parallel_size": 8, "gpu": "h100-80gb", "device_bytes": H100}
    return plan_devices(
        model, contexts or (4000, 8192), PlanOptions(**(values | options)), dtype="bfloat16"
    )


def test_a_70b_model_fits_on_8_devices_and_the_built_shard_has_the_planned_size(
    llama: ModelConfig,
) -> None:
    made = plan(llama)
    assert made.weight_bytes == 2 * shard_parameters(llama, shard_model(llama, RankSpec(0, 8)))
    assert (made.missing_bytes, made.usable_bytes) == (0, 72 * GB)
    held = made.weight_bytes + made.workspace_bytes + made.kv_pool_bytes
    block_bytes = 16 * 327_680 // 8
    assert 72 * GB - block_bytes < held <= 72 * GB
    assert made.all_kv_pool_bytes == 8 * made.kv_pool_bytes > 400 * GB


def test_400_gigabytes_hold_305_requests_of_4000_tokens_and_149_of_8192(
    llama: ModelConfig,
) -> None:
    fits = plan(llama, kv_bytes=400 * GB).fits
    assert [(fit.num_requests, fit.limit) for fit in fits] == [(305, "memory"), (149, "memory")]
    assert [fit.request_kv_bytes for fit in fits] == [4000 * 327_680, 8192 * 327_680]


def test_the_limit_is_named_when_it_is_not_memory(llama: ModelConfig) -> None:
    fits = plan(llama, kv_bytes=400 * GB, max_num_seqs=149).fits
    assert [(fit.num_requests, fit.limit) for fit in fits] == [
        (149, "max_num_seqs"),
        (149, "memory"),
    ]


def test_replicated_kv_heads_halve_what_fits(llama: ModelConfig) -> None:
    (fit,) = plan(llama, 4000, tensor_parallel_size=16, kv_bytes=400 * GB).fits
    assert (fit.num_requests, fit.request_kv_bytes) == (152, 2 * 4000 * 327_680)


def test_what_does_not_fit_says_by_how_much_and_what_would(llama: ModelConfig) -> None:
    made = plan(llama, 8192, tensor_parallel_size=1)
    needed = made.weight_bytes + made.workspace_bytes + 8192 * 327_680
    assert made.missing_bytes == needed - 72 * GB
    assert (made.kv_pool_bytes, min(made.sizes_that_fit)) == (0, 4)
    assert plan(llama, 8192, tensor_parallel_size=4).missing_bytes == 0
    assert plan(llama, kv_bytes=500 * GB).missing_bytes > 0


def inspect(*arguments: str) -> int:
    return main(["models", "inspect", str(CONFIG), *arguments])


def test_the_report_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--tp", "8", "--gpu", "h100-80gb", "--kv-memory", "400GB", "--context", "4000")
    assert inspect(*asked) == 0
    text = capsys.readouterr().out
    assert "8 x h100-80gb, 72.0 GB of 80.0 GB used of each" in text
    assert text.splitlines()[-1].split()[-2:] == ["305", "memory"]
    assert inspect(*asked, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["plan"]["weight_bytes"] == 17_640_734_720
    assert report["plan"]["fits"][0]["num_requests"] == 305
    assert inspect("--tp", "1", "--gpu", "h100-80gb", "--context", "8192") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "Does not fit: the device is 75.2 GB" in last
    assert last.endswith("too small: use --tp 4.")
    assert inspect("--tp", "8") == 0
    assert "--kv-memory" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "7"], "64 attention heads can't be shared by so many ranks: set it to one of 1,"),
        (["--tp", "8", "--context", "131073"], "the model was made for 131072 tokens"),
        (["--gpu", "l4-24gb", "--memory", "24GB"], "leave one out"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "0"], "from 1 to 64"),
        (["--tp", "65"], "from 1 to 64"),
        (["--tp", "eight"], "from 1 to 64"),
        (["--tp", "-1"], ""),
        (["--gpu", "voodoo2"], "'voodoo2' is not known: use one of l4-24gb, "),
        (["--gpu-share", "1.1"], "no share"),
        (["--gpu-share", "nan"], "no share"),
        (["--max-num-seqs", "0"], "from 1 to 4096"),
        (["--kv-memory", "lots"], "no amount of memory"),
    ],
)
def test_wrong_usage_names_what_is_known(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        inspect(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
