"""The block manager: what a prefix hit costs, copy-on-write, publication, eviction order,
sharing."""

from engine.block_manager import BlockManager, PrefixHit
from engine.sequence import Sequence
from engine.step import BlockCopy
from tests.unit.engine.fakes import BLOCK_SIZE, make_geometry, make_request

PROMPT = list(range(10, 22))  # three full blocks


def make_manager(num_blocks: int) -> BlockManager:
    return BlockManager(num_blocks, make_geometry(), prefix_caching=True)


def make_sequence(token_ids: list[int]) -> Sequence:
    return Sequence(make_request("r", token_ids), deadline_s=1e9, max_len=1000)


def compute(manager: BlockManager, token_ids: list[int]) -> Sequence:
    """A sequence whose tokens are all computed and published."""
    sequence = make_sequence(token_ids)
    start(manager, sequence)
    finish_step(manager, sequence)
    return sequence


def start(manager: BlockManager, sequence: Sequence) -> list[BlockCopy]:
    """Admit it with room for all its tokens; returns what the step must copy."""
    copies: list[BlockCopy] = []
    manager.admit(sequence, manager.find_prefix(sequence))
    manager.extend(sequence, sequence.num_tokens, copies)
    return copies


def finish_step(manager: BlockManager, sequence: Sequence) -> None:
    sequence.num_computed_tokens = sequence.num_tokens
    manager.publish(sequence)
    manager.commit()


def num_taken(manager: BlockManager, sequence: Sequence, hit: PrefixHit) -> int:
    return manager.num_admission_blocks(sequence, hit, chunk_tokens=64)


def use_all_free(manager: BlockManager) -> list[int]:
    """The blocks that others can get now."""
    sequence = make_sequence(list(range(500, 500 + manager.num_free_blocks * BLOCK_SIZE)))
    manager.admit(sequence, manager.no_hit)
    return sequence.block_tables[0]


def test_a_new_prompt_takes_all_its_blocks() -> None:
    manager = make_manager(8)
    sequence = make_sequence([*PROMPT, 1])
    hit = manager.find_prefix(sequence)

    assert num_taken(manager, sequence, hit) == 4


def test_a_hit_on_blocks_in_use_takes_only_the_rest() -> None:
    manager = make_manager(8)
    compute(manager, PROMPT)
    sequence = make_sequence([*PROMPT, 1])
    hit = manager.find_prefix(sequence)

    assert hit.num_tokens == 12
    assert num_taken(manager, sequence, hit) == 1


def test_a_hit_on_unreferenced_blocks_takes_them_out_of_the_free_ones() -> None:
    manager = make_manager(4)
    manager.release(compute(manager, PROMPT))
    sequence = make_sequence([*PROMPT, 1])
    hit = manager.find_prefix(sequence)

    assert manager.num_free_blocks == 4
    assert num_taken(manager, sequence, hit) == 4
    manager.admit(sequence, hit)
    assert manager.num_free_blocks == 0


def test_a_wholly_cached_prompt_needs_a_block_for_the_copy() -> None:
    manager = make_manager(3)
    manager.release(compute(manager, PROMPT))
    sequence = make_sequence(PROMPT)
    hit = manager.find_prefix(sequence)

    assert hit.num_tokens == 11
    assert num_taken(manager, sequence, hit) == 4


def test_what_others_hold_too_is_not_freed_by_those_who_leave() -> None:
    manager = make_manager(16)
    first = compute(manager, PROMPT)
    second, third = make_sequence([*PROMPT, 1]), make_sequence([*PROMPT, 2, 3, 4, 5, 6])
    for sequence in (second, third):
        start(manager, sequence)
    assert manager.num_freed_by([]) == 0
    assert manager.num_freed_by([second]) == 1
    assert manager.num_freed_by([second, third]) == 3
    assert manager.num_freed_by([first, second, third]) == 6


def test_the_source_of_a_copy_is_not_handed_out_before_the_step_is_over() -> None:
    manager = make_manager(6)
    manager.release(compute(manager, PROMPT))
    sequence = make_sequence(PROMPT)
    [copy] = start(manager, sequence)

    handed_out = use_all_free(manager)

    assert copy.src not in handed_out
    assert copy.dst == sequence.block_tables[0][-1]
    manager.commit()
    assert manager.num_free_blocks == 1
    assert use_all_free(manager) == [copy.src]


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    manager = make_manager(3)
    manager.release(compute(manager, PROMPT))

    compute(manager, [1, 2, 3])

    assert manager.find_prefix(make_sequence([*PROMPT, 1])).num_tokens == 8


def test_a_reset_drops_what_the_unfinished_step_published() -> None:
    manager = make_manager(8)
    compute(manager, PROMPT[:4])
    unfinished = make_sequence(PROMPT)
    start(manager, unfinished)
    unfinished.num_computed_tokens = 12
    manager.publish(unfinished)

    manager.reset()

    manager.check_integrity([])
    assert manager.num_free_blocks == 8
    assert manager.find_prefix(make_sequence([*PROMPT, 1])).num_tokens == 4


def fork(manager: BlockManager, parent: Sequence, num_forks: int) -> list[Sequence]:
    forks = [
        Sequence(parent.request, deadline_s=1e9, max_len=1000, index=index)
        for index in range(1, num_forks + 1)
    ]
    manager.fork(parent, forks)
    for child in forks:
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_published_blocks = parent.num_published_blocks
    return forks


def write_next(manager: BlockManager, sequences: list[Sequence]) -> list[BlockCopy]:
    """One more token each, in one step."""
    copies: list[BlockCopy] = []
    for sequence in sequences:
        end = sequence.num_computed_tokens + 1
        num_free = manager.num_free_blocks
        num_missing = manager.num_missing_blocks(sequence, end)
        manager.extend(sequence, end, copies)
        assert manager.num_free_blocks == num_free - num_missing
    return copies


def test_all_but_the_last_holder_of_a_partial_block_copy_it_at_the_first_write() -> None:
    manager = make_manager(16)
    parent = compute(manager, [*PROMPT, 1, 2])
    forks = fork(manager, parent, 3)
    full, tail = parent.block_tables[0][:3], parent.block_tables[0][3]
    assert manager.num_free_blocks == 12

    copies = write_next(manager, [parent, *forks])

    assert [copy.src for copy in copies] == [tail] * 3
    tails = [sequence.block_tables[0][3] for sequence in [parent, *forks]]
    assert tails == [*(copy.dst for copy in copies), tail]
    assert all(sequence.block_tables[0][:3] == full for sequence in forks)
    manager.commit()
    manager.check_integrity([parent, *forks])
    assert manager.num_free_blocks == 9


def test_full_blocks_are_never_copied() -> None:
    manager = make_manager(16)
    parent = compute(manager, PROMPT)
    forks = fork(manager, parent, 3)

    assert write_next(manager, [parent, *forks]) == []

    assert len({sequence.block_tables[0][3] for sequence in [parent, *forks]}) == 4


def test_a_holder_that_is_left_alone_writes_in_place() -> None:
    manager = make_manager(16)
    parent = compute(manager, [*PROMPT, 1])
    [child] = fork(manager, parent, 1)
    manager.release(parent)

    assert write_next(manager, [child]) == []
    manager.check_integrity([child])


def test_a_shared_block_survives_its_copy_even_if_all_holders_leave_meanwhile() -> None:
    manager = make_manager(16)
    parent = compute(manager, [*PROMPT, 1])
    [child] = fork(manager, parent, 1)
    [copy] = write_next(manager, [parent])

    manager.release(child)

    assert copy.src not in manager.take_freed_block_ids()
    assert copy.src not in use_all_free(manager)
    manager.commit()
    assert manager.num_free_blocks == 1
