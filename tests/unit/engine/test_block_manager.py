"""The block manager: what a prefix hit costs, copy-on-write, publication, eviction order."""

import pytest

from engine.block_manager import BlockManager
from engine.sequence import Sequence
from tests.unit.engine.fakes import BLOCK_SIZE, make_request

PROMPT = list(range(10, 22))  # three full blocks


def make_manager(num_blocks: int) -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, prefix_caching=True)


def make_sequence(token_ids: list[int]) -> Sequence:
    return Sequence(make_request("r", token_ids), deadline_s=1e9, max_len=1000)


def compute(manager: BlockManager, token_ids: list[int]) -> Sequence:
    """A sequence whose tokens are all computed and published."""
    sequence = make_sequence(token_ids)
    manager.admit(sequence, manager.find_prefix(sequence))
    sequence.num_computed_tokens = len(token_ids)
    manager.publish(sequence)
    manager.commit()
    return sequence


@pytest.mark.parametrize(("num_reserved", "can_admit"), [(0, True), (4, True), (5, False)])
def test_a_new_prompt_takes_all_its_blocks(num_reserved: int, can_admit: bool) -> None:
    manager = make_manager(8)
    sequence = make_sequence([*PROMPT, 1])
    hit = manager.find_prefix(sequence)

    assert manager.can_admit(sequence, hit, num_reserved) is can_admit


def test_a_hit_on_blocks_in_use_takes_only_the_rest() -> None:
    manager = make_manager(8)
    compute(manager, PROMPT)
    sequence = make_sequence([*PROMPT, 1])
    hit = manager.find_prefix(sequence)

    assert hit.num_tokens == 12
    assert manager.can_admit(sequence, hit, num_reserved_blocks=4)
    assert not manager.can_admit(sequence, hit, num_reserved_blocks=5)


def test_a_hit_on_unreferenced_blocks_takes_them_out_of_the_free_ones() -> None:
    manager = make_manager(4)
    manager.release(compute(manager, PROMPT))
    sequence = make_sequence([*PROMPT, 1])
    hit = manager.find_prefix(sequence)

    assert manager.num_free_blocks == 4
    assert manager.can_admit(sequence, hit, num_reserved_blocks=0)
    assert not manager.can_admit(sequence, hit, num_reserved_blocks=1)
    manager.admit(sequence, hit)
    assert manager.num_free_blocks == 0


def test_a_wholly_cached_prompt_needs_a_block_for_the_copy() -> None:
    manager = make_manager(3)
    manager.release(compute(manager, PROMPT))
    sequence = make_sequence(PROMPT)
    hit = manager.find_prefix(sequence)

    assert (hit.num_tokens, hit.is_last_block_rewritten) == (11, True)
    assert not manager.can_admit(sequence, hit, num_reserved_blocks=0)


def test_the_source_of_a_copy_is_not_handed_out_before_the_step_is_over() -> None:
    manager = make_manager(6)
    manager.release(compute(manager, PROMPT))
    sequence = make_sequence(PROMPT)
    copy = manager.admit(sequence, manager.find_prefix(sequence))
    assert copy is not None

    handed_out = [manager.grow(sequence) for _ in range(manager.num_free_blocks)]

    assert copy.src not in handed_out
    manager.check_integrity([sequence])
    manager.commit()
    assert manager.num_free_blocks == 1
    assert manager.grow(sequence) == copy.src


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    manager = make_manager(3)
    manager.release(compute(manager, PROMPT))

    compute(manager, [1, 2, 3])

    assert manager.find_prefix(make_sequence([*PROMPT, 1])).num_tokens == 8


def test_a_reset_drops_what_the_unfinished_step_published() -> None:
    manager = make_manager(8)
    compute(manager, PROMPT[:4])
    unfinished = make_sequence(PROMPT)
    manager.admit(unfinished, manager.find_prefix(unfinished))
    unfinished.num_computed_tokens = 12
    manager.publish(unfinished)

    manager.reset()

    manager.check_integrity([])
    assert manager.num_free_blocks == 8
    assert manager.find_prefix(make_sequence([*PROMPT, 1])).num_tokens == 4
