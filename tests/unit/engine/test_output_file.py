"""What commands write is whole, and is refused beforehand where it can't be."""

from pathlib import Path

import pytest

from engine.output_file import OutputFileError, check_output, write_output


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    for content in (b"first", b"second"):
        check_output(path)
        write_output(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_checking_leaves_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    check_output(path)
    assert list(tmp_path.iterdir()) == []
    path.write_text("kept")
    check_output(path)
    assert path.read_text() == "kept"


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, path = tmp_path / "link", tmp_path / "out.json"
    link.symlink_to(path)
    write_output(link, b"x")
    assert link.is_symlink()
    assert path.read_bytes() == b"x"


def test_a_device_is_written_to() -> None:
    check_output(Path("/dev/null"))
    write_output(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OutputFileError, match="No space left"):
        write_output(Path("/dev/full"), b"x")


def test_what_is_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("x")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OutputFileError, match="for something else, too"):
        check_output(link, [path])


def test_where_nothing_can_be_written_it_is_said_before(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="no folder /absent"):
        check_output(Path("/absent/out.json"))
    with pytest.raises(OutputFileError, match="Is a directory"):
        check_output(tmp_path)
    with pytest.raises(OutputFileError, match=r"/proc/out\.json cannot be written"):
        check_output(Path("/proc/out.json"))


def test_a_failed_write_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)  # one that is written beside it has a longer name
    path.write_text("kept")
    with pytest.raises(OutputFileError, match="File name too long"):
        write_output(path, b"new")
    assert path.read_text() == "kept"
