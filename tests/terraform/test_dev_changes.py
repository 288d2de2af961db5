"""Changes of a cluster that stands touch only what they must, and destroy leaves nothing."""

import copy
from typing import Any

import pytest

from tests.terraform.account_inventory import inventory
from tests.terraform.applied_environment import AppliedEnvironment, found
from tests.terraform.terraform_runner import NO_CHANGES

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(400)]

DESCRIPTIONS = {"aws_s3_object", "aws_ssm_parameter"}
"""Ray's autoscaler file and the cluster's card."""


def changed(plan: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Address, type and actions of what is not left as it is."""
    return [
        (each["address"], each["type"], each["change"]["actions"])
        for each in plan["resource_changes"]
        if each["mode"] == "managed" and each["change"]["actions"] != ["no-op"]
    ]


def set_pools(dev: AppliedEnvironment, pools: dict[str, Any]) -> None:
    dev.root.set_variables(**found(dev.settings), pools=pools)


def test_a_larger_pool_only_changes_what_describes_it(dev: AppliedEnvironment) -> None:
    pools = copy.deepcopy(dev.settings["pools"])
    next(iter(pools.values()))["max_nodes"] += 1
    set_pools(dev, pools)
    changes = changed(dev.root.planned("-refresh=false", out="larger"))
    assert changes
    assert {kind for _, kind, _ in changes} <= DESCRIPTIONS, changes
    assert {tuple(actions) for _, _, actions in changes} == {("update",)}


def test_a_new_pool_adds_templates_and_leaves_the_others_alone(dev: AppliedEnvironment) -> None:
    pools = copy.deepcopy(dev.settings["pools"])
    first = next(iter(pools.values()))
    first["max_nodes"] += 1
    pools["spare"] = {**copy.deepcopy(first), "min_nodes": 0}
    set_pools(dev, pools)
    changes = changed(dev.root.planned("-refresh=false", out="pool"))
    made = [address for address, _, actions in changes if actions == ["create"]]
    assert made
    assert all('["spare"]' in address for address in made), made
    updated = [change for change in changes if change[2] != ["create"]]
    assert {kind for _, kind, _ in updated} <= DESCRIPTIONS, updated
    assert {tuple(actions) for _, _, actions in updated} == {("update",)}
    dev.root.apply("pool")
    assert dev.root.plan(out="after").status == NO_CHANGES


def test_destroy_leaves_nothing(dev: AppliedEnvironment) -> None:
    assert len(inventory(dev.aws) - dev.before) > 20
    dev.root.destroy()
    assert sorted(inventory(dev.aws) - dev.before) == []
