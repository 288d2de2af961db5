"""Where the campaign's weights come from and go to: a good model and bad versions of it, disks that
are too small or can't be written, and nodes that lie.

Must not know which of them does what, when.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cold_start_harm import HOST, SECRET
from benchmarks.cold_start_model import SMALL, num_bytes_of, write_checkpoint
from cache_tiers.messages import PeerAddress
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import Lent
from cache_tiers.weights.chunk_server import ChunkServer
from cache_tiers.weights.messages import WeightFile
from engine.checkpoints.layout import INDEX_NAME
from engine.checkpoints.manifest import MANIFEST_NAME, Manifest, read_manifest
from engine.checkpoints.store import checkpoint_path
from wire.frames import FrameDecoder, encode_frame
from wire.handshake import PROTOCOL_VERSION, Handshake, Role

_SMALL_DISK_BYTES = 16 * 1024**2
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Versions:
    """Folders, as an object store holds them."""

    good: Path
    short: Path
    """One object has lost its end."""
    lying: Path
    """The index names a file that isn't there."""
    manifest: Manifest
    """Of the good one."""

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.manifest)

    def put_on_disk(self, home: Path, model: str) -> Path:
        """As if it had been pulled."""
        folder = checkpoint_path(home, model)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.good, folder)  # copies times, too
        return folder

    def a_shard(self, number: int) -> str:
        names = sorted(name for name in self.manifest.files if name.endswith(".safetensors"))
        return names[number % len(names)]


def write_versions(folder: Path) -> Versions:
    good, short, lying = (folder / name for name in ("good", "short", "lying"))
    write_checkpoint(good, SMALL)
    for bad in (short, lying):
        shutil.copytree(good, bad)
        (bad / MANIFEST_NAME).unlink()  # a source that says no hash
    shard = sorted(short.glob("*.safetensors"))[1]
    os.truncate(shard, shard.stat().st_size // 2)
    index = json.loads((lying / INDEX_NAME).read_text())
    weight_map = index["weight_map"]
    weight_map[next(iter(weight_map))] = "model-00009-of-00003.safetensors"
    (lying / INDEX_NAME).write_text(json.dumps(index))
    return Versions(good, short, lying, read_manifest(good))


def flip_on_disk(path: Path, offset: int) -> None:
    """One bit, as a disk does: the file's time stays."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk at ``folder``, which is there, on which the model has no room. Raises ``OSError`` if
    this process may not mount."""
    size = f"size={_SMALL_DISK_BYTES}"
    _run("mount", "-t", "tmpfs", "-o", size, "headwater-benchmark", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


def set_read_only(disk: Path, *, is_read_only: bool) -> None:
    mode = "ro" if is_read_only else "rw"
    _run("mount", "-o", f"remount,{mode},size={_SMALL_DISK_BYTES}", str(disk))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} hangs") from error
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class NodeOfAnotherVersion:
    """Says in its first words that it speaks another version."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.address = PeerAddress(HOST, self._listener.getsockname()[1], SECRET)

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(_TIMEOUT_S)
                handshake = Handshake(Role.SERVER, SECRET, PROTOCOL_VERSION + 1)
                client.sendall(encode_frame(handshake.hello()))
                decoder = FrameDecoder()
                while data := client.recv(4096):  # until the other one has had enough
                    decoder.feed(data)


class LendingNode:
    """Offers the model by whatever name; one that lies, with other bytes, whose chunks have the
    digests of what it sends."""

    def __init__(self, versions: Versions, *, lies: bool) -> None:
        self._files = [_file_in_memory(versions, name, lies) for name in versions.manifest.files]
        manifest = (versions.good / MANIFEST_NAME).read_bytes()
        lent = Lent("the good one", self._files, manifest)
        self._loop = asyncio.new_event_loop()
        self._server = ChunkServer(lambda _: lent, HOST, SECRET)

    @property
    def address(self) -> PeerAddress:
        """Once started."""
        return self._server.address

    def start(self) -> None:
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(_TIMEOUT_S)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        for file in self._files:
            file.close()


def _file_in_memory(versions: Versions, name: str, lies: bool) -> ArrivingFile:
    content = bytearray((versions.good / name).read_bytes())
    if lies and name.endswith(".safetensors"):
        content[-1] ^= 1
    entry = versions.manifest.files[name]
    file = ArrivingFile.in_memory(WeightFile(name, entry.bytes, entry.sha256))
    os.pwrite(file.fd, content, 0)
    file.mark_until(entry.bytes)
    return file
