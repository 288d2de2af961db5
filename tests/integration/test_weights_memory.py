"""What a node cache that is killed leaves of the models in its memory."""

import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_tiers.weights.link_folder import LinkFolder
from tests.integration.weights_holder import CONTENT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NUM_KILLS = 12
WHOLE = {
    ".links",
    "config.json",
    "headwater.json",
    "model.safetensors",
    "packed-int8-0-of-1.weights",
}


def start_holder(root: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.weights_holder", str(root)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def kill(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()


def test_after_a_kill_at_any_moment_the_next_one_finds_an_empty_root(tmp_path: Path) -> None:
    spare = random.Random(7)
    for _ in range(NUM_KILLS):
        holder = start_holder(tmp_path)
        time.sleep(spare.uniform(0, 0.02))
        kill(holder)
        assert any((tmp_path / "smol").iterdir())
        LinkFolder(tmp_path)
        assert list((tmp_path / "smol").iterdir()) == []


def stop(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)


def test_at_any_moment_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    num_seen = num_on_their_way = 0
    try:
        for _ in range(200):
            stop(holder)
            for path in (tmp_path / "smol").iterdir():
                if path.name.startswith("."):
                    num_on_their_way += 1
                    continue
                num_seen += 1
                found = {each.name for each in path.iterdir() if not each.name.startswith(".new-")}
                assert found in (WHOLE, WHOLE - {"packed-int8-0-of-1.weights"})
                assert (path / "model.safetensors").read_bytes() == CONTENT
                assert (path / "headwater.json").read_bytes() == b"manifest"
            holder.send_signal(signal.SIGCONT)
            time.sleep(0.001)
    finally:
        kill(holder)
    assert num_seen > 100
    assert num_on_their_way > 10


def test_who_has_mapped_weights_keeps_them_when_their_holder_is_killed(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    mapped = None
    try:
        while mapped is None:
            try:
                with (tmp_path / "smol" / "1" / "model.safetensors").open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except FileNotFoundError:
                time.sleep(0.001)
    finally:
        kill(holder)
    assert mapped[:] == CONTENT
    for link in (tmp_path / "smol").glob("*/model.safetensors"):
        assert link.is_symlink()
        assert not link.exists()


def test_two_holders_leave_each_other_alone(tmp_path: Path) -> None:
    first = start_holder(tmp_path)
    stop(first)
    try:
        before = {each.name for each in (tmp_path / "smol").iterdir()}
        assert LinkFolder(tmp_path).remove_left_overs() == 0
        assert {each.name for each in (tmp_path / "smol").iterdir()} == before
    finally:
        kill(first)
