"""Ranks that don't meet, or lose one another, end with a clear error within their time."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from engine.collectives import join_ranks
from engine.config import RankSpec
from engine.errors import CollectiveError, EngineStartError

pytestmark = pytest.mark.integration


def test_ranks_that_never_come_are_waited_for_in_vain(tmp_path: Path) -> None:
    started_s = time.monotonic()
    with pytest.raises(EngineStartError, match="rank 0 did not meet the other 2 within 1 s"):
        join_ranks(RankSpec(0, 3), rendezvous=tmp_path, device="cpu", timeout_s=1)
    assert time.monotonic() - started_s < 5


def _meet_and_die(rendezvous: Path) -> None:
    join_ranks(RankSpec(1, 2), rendezvous=rendezvous, device="cpu", timeout_s=20)
    os._exit(0)


def test_a_sum_without_a_rank_that_died_is_an_error(tmp_path: Path) -> None:
    peer = multiprocessing.get_context("spawn").Process(target=_meet_and_die, args=(tmp_path,))
    peer.start()
    try:
        ranks = join_ranks(RankSpec(0, 2), rendezvous=tmp_path, device="cpu", timeout_s=20)
        peer.join(10)
        started_s = time.monotonic()
        with pytest.raises(CollectiveError, match=r"(?i)is gone .*(closed|reset|broken|timed out)"):
            ranks.all_reduce_(torch.ones(4))
        assert time.monotonic() - started_s < 5
    finally:
        peer.kill()
        peer.join(5)
