import pytest

from engine.checkpoints.errors import SourceUnavailable, UnsupportedCheckpoint
from engine.checkpoints.layout import choose_files, gguf_files

FOLDER = ["config.json", "tokenizer.json", "model.safetensors"]


def test_data_is_taken_and_code_and_pickles_are_not() -> None:
    data = [*FOLDER, "generation_config.json", "tokenizer_config.json", "chat_template.jinja"]
    other = ["README.md", "modeling.py", "pytorch_model.bin", "tokenizer.model", "optimizer.pt"]
    assert choose_files(data + other, where="here") == tuple(sorted(data))


def test_the_same_weights_in_another_naming_are_left_out() -> None:
    names = [*FOLDER, "consolidated.safetensors", "adapter_model.safetensors"]
    assert choose_files(names, where="here") == tuple(sorted(FOLDER))


def test_hidden_files_and_names_that_no_model_has_are_left_out() -> None:
    names = [*FOLDER, "._model.safetensors", "a\0b.safetensors", "a\nb.safetensors"]
    assert choose_files(names, where="here") == tuple(sorted(FOLDER))


def test_safetensors_win_over_gguf() -> None:
    assert choose_files([*FOLDER, "model-q4.gguf"], where="here") == tuple(sorted(FOLDER))


def test_a_single_gguf_file_is_the_model() -> None:
    assert choose_files(["README.md", "model-q4.gguf"], where="here") == ("model-q4.gguf",)


def test_all_shards_of_a_gguf_model_are_taken_in_order() -> None:
    shards = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert choose_files(shards[::-1], where="here") == shards
    assert gguf_files(shards[1], shards, where="here") == shards


@pytest.mark.parametrize("name", ["other.gguf", "m-00001-of-00002.gguf", "m-00001-of-99999.gguf"])
def test_a_gguf_file_or_shard_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(SourceUnavailable, match=r"here has no file"):
        gguf_files(name, ["m-00001-of-00002.gguf"], where="here")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no safetensors weights and no GGUF file"),
        (["config.json", "tokenizer.json", "pytorch_model.bin"], "pickled weights are not read"),
        (
            ["a.gguf", "b.gguf"],
            r"2 GGUF files \(a.gguf, b.gguf\): name the one to pull, here/a.gguf",
        ),
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter"),
        (["tokenizer.json", "model.safetensors"], "no config.json"),
        (["config.json", "model.safetensors"], "no tokenizer.json"),
        (["config.json", "model.safetensors", "tokenizer.model"], "save_pretrained"),
    ],
)
def test_what_is_no_model_says_why(names: list[str], message: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=message):
        choose_files(names, where="here")
