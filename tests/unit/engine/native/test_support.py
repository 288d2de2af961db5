"""What keeps the compiled step from being used is said before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.models.registry import read_model_config
from engine.native.processor import NEEDED_FLAGS, Processor, processor_name, this_processor
from engine.native.support import reason_against
from tests.unit.engine.native.test_toolchain import GNU, write_script

GOOD = Processor("Linux", "x86_64", frozenset(NEEDED_FLAGS))
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 42,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def reason(
    folder: Path,
    *,
    processor: Processor = GOOD,
    has_compiler: bool = True,
    model: dict[str, Any] | None = None,
    **config: Any,
) -> str | None:
    if has_compiler:
        write_script(folder, GNU)
    return reason_against(
        EngineConfig(**config),
        read_model_config(LLAMA | (model or {})),
        folder / "cache",
        processor=processor,
        search_path=str(folder),
    )


def test_a_good_machine_has_none(tmp_path: Path) -> None:
    assert reason(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"compiled": "never"}, "compiled is 'never'"),
        ({"runner": "paced"}, "runner is 'paced'"),
        ({"device": "cuda"}, "device is 'cuda'"),
        ({"dtype": "float32"}, "dtype is 'float32': it computes in bfloat16 alone"),
        ({"attention": "reference"}, "attention is 'reference'"),
        ({"weight_layout": "mapped"}, "weight_layout is 'mapped'"),
        ({"tensor_parallel_size": 2}, "intermediate_size of a rank is 21, and inputs are read in"),
        ({"processor": Processor("Darwin", "arm64")}, "Linux on x86_64, not for Darwin on arm64"),
        (
            {"processor": Processor("Linux", "x86_64", frozenset({"avx2", "avx512f"}))},
            "this processor has no avx512bw, avx512vl, avx512dq",
        ),
        ({"has_compiler": False}, "there is no g++ on this machine: install it"),
        ({"model": {"hidden_size": 47}}, "hidden_size is 47"),
    ],
)
def test_each_reason_is_named(tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    assert expected in (reason(tmp_path, **config) or "")


def test_a_library_in_the_cache_does_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "step-1-2.so").touch()
    assert reason(tmp_path, has_compiler=False) is None


def test_flags_come_from_the_kernel(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512f\nbugs\t\t:\n")
    assert this_processor(cpuinfo).flags == {"fpu", "avx2", "avx512f"}
    assert this_processor(tmp_path / "absent").flags == frozenset()


def test_the_name_comes_from_the_kernel_or_is_the_architecture(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast 9000 @ 3GHz\nflags\t\t: fpu\n")
    assert processor_name(cpuinfo) == "Fast 9000 @ 3GHz"
    assert processor_name(tmp_path / "absent") != ""
