"""Folders through which the processes of a node open what its node cache holds in memory.

    root/<model>/<revision>/        0700, whole by one rename
        config.json ...             small files, copied
        model.safetensors           -> /proc/<pid of the node cache>/fd/<n>
        headwater.json              the manifest
        .links                      who made it, and what each link opens

A link names a process and a number, and after a kill -9 both may be given to somebody else, so
``.links`` says which file was meant. Must not know what is in the files.
"""

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom, WrongWeights
from cache_tiers.weights.messages import can_be_file_name

MANIFEST_NAME = "headwater.json"
_RECORD_NAME = ".links"
_NEW_PREFIX, _OLD_PREFIX = ".new-", ".old-"
_PACKED = "packed-*.weights"


class _Links(msgspec.Struct, frozen=True):
    """What ``.links`` holds, as JSON."""

    pid: int
    started: str
    opens: dict[str, tuple[int, int, int]]
    """Device, inode and size of what each link opens."""


class LinkFolder:
    """All of one node cache below one root. Methods may be called from any thread, but not two at a
    time for one path.
    """

    def __init__(self, root: Path) -> None:
        """Makes ``root``, for this user alone, and removes what dead processes left there."""
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        self._root = root
        self._pid = os.getpid()
        started = _start_of(self._pid)
        assert started is not None, "this process runs"
        self._started = started
        self._counter = itertools.count()
        self.remove_left_overs()

    def make(
        self,
        path: Path,
        small: Mapping[str, bytes],
        large: Mapping[str, ArrivingFile],
        manifest: bytes,
    ) -> None:
        """The folder ``path`` below the root, in place of what was there; ``large`` are whole.

        Raises `WrongWeights` for a name that is none of a file in a folder, and `NoRoom` where the
        disk doesn't take it; then nothing is left and what was at ``path`` stays.
        """
        for name in (*small, *large):
            _check_name(name)
        twice = (small.keys() & large.keys()) | ({MANIFEST_NAME} & (small.keys() | large.keys()))
        if twice:
            raise WrongWeights(f"two files of one name: {', '.join(sorted(twice))}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = self._sibling(path, _NEW_PREFIX)
            new.mkdir(mode=0o700)
            try:
                self._fill(new, small, large, manifest)
                self.remove(path)
                new.rename(path)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
        except OSError as error:
            raise NoRoom(
                f"{path} can't be made: {error.strerror}: it takes a few megabytes on the disk of "
                f"{self._root}, which must be writable"
            ) from error

    def link(self, path: Path, name: str, file: ArrivingFile) -> None:
        """``name`` of the folder ``path`` opens ``file`` from now on, whatever it was before.
        Raises ``OSError``; then it is what it was."""
        _check_name(name)
        record = _read_record(path)
        if record is None:
            raise FileNotFoundError(errno.ENOENT, "the model's folder is gone", str(path))
        # What may fail for want of room comes first: a link that nobody backs must not stay.
        new_record = self._new_record(path, {**record.opens, name: _identity(file)})
        new = self._sibling(path / name, _NEW_PREFIX)
        new.symlink_to(_target(self._pid, file))
        new.replace(path / name)
        new_record.replace(path / _RECORD_NAME)

    def adopt_new(self, path: Path) -> list[Path]:
        """Files that ranks have put into the folder for those to come, each whole, and by name:
        packed weights. They are on the disk until ``link`` replaces them."""
        try:
            found = sorted(path.glob(_PACKED))
            return [each for each in found if stat.S_ISREG(each.lstat().st_mode)]
        except OSError:
            return []  # the folder went meanwhile

    def is_sound(self, path: Path) -> bool:
        """Whether the folder's maker lives and each link opens what it was made for."""
        record = _read_record(path)
        if record is None or _start_of(record.pid) != record.started:
            return False
        return all(_opens(path / name, meant) for name, meant in record.opens.items())

    def remove(self, path: Path) -> None:
        """Who has opened its files keeps them. None may be there."""
        old = self._sibling(path, _OLD_PREFIX)
        try:
            path.rename(old)
        except FileNotFoundError:
            return
        _delete(old)

    def remove_left_overs(self) -> int:
        """How many folders of dead processes there were. Those of living ones stay."""
        num_removed = 0
        for folder, names, _ in os.walk(self._root):
            for name in tuple(names):
                path = Path(folder, name)
                if self._is_left_over(path):
                    _delete(path)
                    num_removed += 1
                    names.remove(name)
                elif path.joinpath(_RECORD_NAME).exists():
                    names.remove(name)  # whole: nothing to be found below
        return num_removed

    def _is_left_over(self, path: Path) -> bool:
        if path.name.startswith((_NEW_PREFIX, _OLD_PREFIX)):
            _, pid, started, *_ = (*path.name.split("-"), "", "")
            return not pid.isdecimal() or _start_of(int(pid)) != started
        return path.joinpath(_RECORD_NAME).exists() and not self.is_sound(path)

    def _sibling(self, path: Path, prefix: str) -> Path:
        """A name that says whose it is, so that it goes when that process is dead."""
        return path.with_name(f"{prefix}{self._pid}-{self._started}-{next(self._counter)}")

    def _fill(
        self,
        folder: Path,
        small: Mapping[str, bytes],
        large: Mapping[str, ArrivingFile],
        manifest: bytes,
    ) -> None:
        for name, content in small.items():
            (folder / name).write_bytes(content)
        for name, file in large.items():
            assert file.is_whole
            (folder / name).symlink_to(_target(self._pid, file))
        opens = {name: _identity(file) for name, file in large.items()}
        self._new_record(folder, opens).replace(folder / _RECORD_NAME)
        (folder / MANIFEST_NAME).write_bytes(manifest)

    def _new_record(self, folder: Path, opens: dict[str, tuple[int, int, int]]) -> Path:
        """Written, but not in its place."""
        new = self._sibling(folder / _RECORD_NAME, _NEW_PREFIX)
        new.write_bytes(msgspec.json.encode(_Links(self._pid, self._started, opens)))
        return new


def _check_name(name: str) -> None:
    if not can_be_file_name(name):
        raise WrongWeights(f"{name[:255]!r} is no name for a file of a model")


def _target(pid: int, file: ArrivingFile) -> str:
    return f"/proc/{pid}/fd/{file.fd}"


def _identity(file: ArrivingFile) -> tuple[int, int, int]:
    found = os.fstat(file.fd)
    return found.st_dev, found.st_ino, found.st_size


def _opens(link: Path, meant: tuple[int, int, int]) -> bool:
    try:
        found = link.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino, found.st_size) == meant


def _read_record(folder: Path) -> _Links | None:
    try:
        return msgspec.json.decode((folder / _RECORD_NAME).read_bytes(), type=_Links)
    except (OSError, msgspec.DecodeError):
        return None


def _start_of(pid: int) -> str | None:
    """When it was started, in the kernel's ticks: no two processes have both in common."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]


def _delete(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
