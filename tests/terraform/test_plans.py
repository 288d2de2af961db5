"""The policies hold for what both environments plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.terraform.applied_environment import AppliedEnvironment, found, prepare_account
from tests.terraform.plan_policies import POLICIES, Policy, planned_resources
from tests.terraform.terraform_runner import Root, copied_root

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def prod(dev: AppliedEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Root:
    parent = tmp_path_factory.mktemp("prod")
    settings = prepare_account(dev.aws, parent, "prod", dev.root.timings)
    root = copied_root(parent, "environments/prod", dev.aws, dev.root.timings)
    root.set_variables(**found(settings))
    return root


@pytest.fixture(scope="module")
def plans(dev: AppliedEnvironment, prod: Root) -> Mapping[str, Mapping[str, Any]]:
    initialised = prod.init_with_state()
    assert initialised.status == 0, initialised.told
    return {"dev": dev.plan, "prod": prod.planned()}


@pytest.mark.parametrize("environment", ["dev", "prod"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_a_plan_keeps_the_policy(
    plans: Mapping[str, Mapping[str, Any]], environment: str, policy: Policy
) -> None:
    resources = planned_resources(plans[environment])
    assert len(resources) > 50
    assert list(policy(resources)) == []


def test_a_missing_bucket_of_states_is_named(prod: Root, tmp_path: Path) -> None:
    elsewhere = copied_root(tmp_path, "environments/prod", None, prod.timings)
    root = Root(elsewhere.folder, prod.environment, prod.timings)
    outcome = root.init_with_state(bucket="headwater-nowhere")
    assert outcome.status == 1
    assert "headwater-nowhere" in outcome.told
