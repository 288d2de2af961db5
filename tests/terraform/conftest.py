"""One mock AWS and one applied environment for all tests of this folder.

The apply mostly waits for its provider, so it runs beside the tests that don't need it.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.terraform.applied_environment import AppliedEnvironment, apply_dev
from tests.terraform.moto_shim import MockAws, mock_aws
from tests.terraform.terraform_runner import SOURCE, require_terraform
from tests.terraform.timings import Timings

TIMINGS_FILE = SOURCE.parent / "build/terraform_timings.json"
_timings = Timings()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need the environment come last, and of them those that change it."""
    items.sort(key=lambda item: ("dev" in _fixtures(item), item.path.name == "test_dev_changes.py"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := _timings.lines():
        terminalreporter.section("time of Terraform's steps")
        for line in lines:
            terminalreporter.write_line(line)
        _timings.write(TIMINGS_FILE)


@pytest.fixture(scope="session")
def timings() -> Timings:
    return _timings


@pytest.fixture(scope="session")
def aws() -> Iterator[MockAws]:
    with mock_aws() as mock:
        yield mock


@pytest.fixture(scope="session")
def applying(
    aws: MockAws, timings: Timings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[AppliedEnvironment]]:
    require_terraform()
    parent = tmp_path_factory.mktemp("dev")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(apply_dev, aws, parent, timings)


@pytest.fixture(scope="session", autouse=True)
def _apply_early(request: pytest.FixtureRequest) -> None:
    if (SOURCE / "environments/dev").is_dir() and any(
        "dev" in _fixtures(item) for item in request.session.items
    ):
        request.getfixturevalue("applying")


@pytest.fixture(scope="session")
def dev(request: pytest.FixtureRequest) -> AppliedEnvironment:
    """The environment dev, applied."""
    if not (SOURCE / "environments/dev").is_dir():
        pytest.skip("there is no environment dev")
    future: Future[AppliedEnvironment] = request.getfixturevalue("applying")
    return future.result()


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests of modules copy the code to."""
    return tmp_path_factory.mktemp("copies")


def _fixtures(item: pytest.Item) -> list[str]:
    names: list[str] = getattr(item, "fixturenames", [])
    return names
