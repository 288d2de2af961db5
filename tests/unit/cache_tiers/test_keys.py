"""Block keys: equal exactly when KV is interchangeable, and the same on every machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_tiers.keys import (
    KEY_BYTES,
    KeySalt,
    block_keys,
    next_key,
    root_key,
    salted_root,
)

SALT = KeySalt("sha256:abc", "bfloat16", 16, "layer-kv-slot-head")
ROOT = root_key(SALT)


def test_keys_are_a_stable_format() -> None:
    """Blocks on disk outlive a release: who changes this must change the layout's name too."""
    keys = block_keys(ROOT, list(range(32)), 16)

    assert [key.hex() for key in keys] == [
        "793071cf8f1aa686acaff1a535876e1c",
        "57b62a5e4abca13b75e1c3c7d0841189",
    ]


@pytest.mark.parametrize(
    "other",
    [
        replace(SALT, weights_revision="sha256:abd"),
        replace(SALT, kv_dtype="float32"),
        replace(SALT, block_size_tokens=32),
        replace(SALT, layout="layer-slot-kv-head"),
        replace(SALT, lora="tone@3"),
        replace(SALT, tenant="acme"),
        replace(SALT, lora="acme", tenant=""),
    ],
)
def test_every_part_of_the_salt_separates(other: KeySalt) -> None:
    assert root_key(other) != ROOT


def test_parts_of_the_salt_do_not_run_into_each_other() -> None:
    assert root_key(replace(SALT, lora="ab", tenant="c")) != root_key(
        replace(SALT, lora="a", tenant="bc")
    )


def test_a_partial_block_has_no_key() -> None:
    assert block_keys(ROOT, list(range(15)), 16) == []
    assert len(block_keys(ROOT, list(range(33)), 16)) == 2


@given(st.lists(st.integers(0, 2**32 - 1), max_size=80), st.integers(1, 9), st.data())
def test_one_changed_token_changes_its_block_and_all_after_it(
    token_ids: list[int], block_size: int, data: st.DataObject
) -> None:
    keys = block_keys(ROOT, token_ids, block_size)
    assert len(keys) == len(token_ids) // block_size
    assert all(len(key) == KEY_BYTES for key in keys)
    if not keys:
        return
    position = data.draw(st.integers(0, len(keys) * block_size - 1))
    changed = list(token_ids)
    changed[position] ^= 1

    other = block_keys(ROOT, changed, block_size)

    first = position // block_size
    assert other[:first] == keys[:first]
    assert all(a != b for a, b in zip(other[first:], keys[first:], strict=True))


def test_keys_can_be_chained_one_by_one() -> None:
    token_ids = list(range(100, 148))
    keys = block_keys(ROOT, token_ids, 16)

    assert next_key(keys[1], token_ids[32:48]) == keys[2]


def test_a_clients_salt_separates_and_depends_on_the_models() -> None:
    salted = salted_root(ROOT, "x")
    assert salted == salted_root(ROOT, "x")
    assert len(salted) == KEY_BYTES
    other = root_key(replace(SALT, tenant="acme"))
    assert len({ROOT, salted, salted_root(ROOT, "y"), salted_root(other, "x")}) == 4
