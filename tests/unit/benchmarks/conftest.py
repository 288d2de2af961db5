"""Imports Ray Serve once with warnings off: its own modules warn, and warnings are errors here."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import ray.serve.scripts  # noqa: F401
