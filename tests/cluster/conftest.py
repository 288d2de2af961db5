"""Imports Ray Serve once with warnings off: its own modules warn, and warnings are errors here.

Models stand in a home of their own, so that the tests' names do not stay in the user's.
"""

import warnings
from collections.abc import Iterator

import pytest

from tests.cluster.local import provide
from tests.quickstart import MODEL

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve.scripts  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a Ray of its own, or shares its module's."""
    for item in items:
        if "tests/cluster" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWATER_HOME", str(tmp_path_factory.mktemp("home")))
        provide(MODEL)
        yield
