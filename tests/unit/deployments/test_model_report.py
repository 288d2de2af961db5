import pytest

from deployments.model_report import amount, fits_of, render_list, short_amount
from engine.checkpoints.inventory import StoredModel
from engine.model_size import model_size
from engine.models.registry import read_model_config

LLAMA_2_70B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (131_072, "131.1 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (171_798_691_840, "171.8 GB"),
        (10**16, "10000.0 TB"),
    ],
)
def test_amounts_are_rounded_to_decimal_units(number: int, text: str) -> None:
    assert short_amount(number, "B") == text


def test_an_exact_number_stands_beside_a_rounded_one() -> None:
    assert amount(327_680, "B") == "327.7 kB (327,680)"
    assert amount(12) == "12"


def test_a_70b_counted_as_multi_head_needs_its_known_memory() -> None:
    size = model_size(read_model_config(LLAMA_2_70B), dtype_bytes=2)
    assert size.kv_token_bytes == 2_621_440

    (fit,) = fits_of(size, [2048], None, block_size_tokens=16)
    assert 32 * fit.request_kv_bytes == 171_798_691_840
    assert fit.num_requests is None


def test_a_model_that_is_damaged_stands_below_the_table_with_its_problem() -> None:
    lines = render_list([StoredModel("tiny", 1234, None, None, "a file is missing")]).splitlines()
    assert lines[1].split() == ["tiny", "-", "1.2", "kB", "-", "DAMAGED"]
    assert lines[-1] == "tiny: a file is missing"
