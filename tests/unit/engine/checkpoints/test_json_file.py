import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.json_file import read_json_object, read_optional_json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"a": [1, 2.5, "ä", null, {"b": true}], "long": 1000000000000000019884624838656}'
    )
    assert read_json_object(path) == {
        "a": [1, 2.5, "ä", None, {"b": True}],
        "long": 1000000000000000019884624838656,
    }
    assert read_optional_json_object(tmp_path / "absent.json") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JSON object"),
        (b"nonsense", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"a": 1', "not a JSON object"),
        (b"\xff\xfe{}", "not a JSON object"),
        (b'{"a": NaN}', "not a JSON object"),
        (b'{"a": Infinity}', "not a JSON object"),
        (b'{"a": 1e999}', "not a JSON object"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "not a JSON object"),
        (b'{"a": "\\ud800"}', "not a JSON object"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice"),
        (b'{"a": ' + b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
)
def test_what_others_would_read_differently_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=message):
        read_json_object(path)


def test_of_many_keys_the_one_that_stands_twice_is_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    keys = [f"k{number}" for number in range(100_000)]
    path.write_text("{" + ",".join(f'"{key}":0' for key in [*keys, keys[-1]]) + "}")
    started_s = time.process_time()
    with pytest.raises(CorruptCheckpoint, match="'k99999' stands twice"):
        read_json_object(path)
    assert time.process_time() - started_s < 5  # comparing each with all takes minutes


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CorruptCheckpoint, match="larger than 16 MiB"):
        read_json_object(path)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="cannot read"):
        read_json_object(tmp_path)


@given(content=st.binary(max_size=40))
def test_random_bytes_give_an_object_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.json"
    path.write_bytes(content)
    with suppress(CorruptCheckpoint):
        assert isinstance(read_json_object(path), dict)
