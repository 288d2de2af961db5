"""Imports Ray Serve once with warnings off: its own modules warn, and warnings are errors here."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve.scripts  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder starts a Ray of its own, or shares its module's."""
    for item in items:
        if "tests/cluster" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)
