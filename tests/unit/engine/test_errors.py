"""The engine has one exception tree, and the drawing of it is complete."""

import importlib
import inspect
import pkgutil
import re

import engine
from engine import errors


def test_every_exception_of_the_engine_stands_in_the_drawing_under_its_parent() -> None:
    drawn: dict[str, str | None] = {}
    path: list[str] = []
    for indent, name in re.findall(r"(?m)^([│├└─ ]*)([A-Z]\w+)(?=  |$)", errors.__doc__ or ""):
        depth = len(indent) // 4
        drawn[name] = path[depth - 1] if depth else None
        path[depth:] = [name]
    declared: dict[str, str | None] = {}
    for module in pkgutil.walk_packages(engine.__path__, "engine."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if name.startswith("_"):
                continue  # never leaves its module
            if issubclass(kind, Exception) and kind.__module__ == module.name:
                assert issubclass(kind, errors.EngineError), f"{kind} is outside of the tree"
                parent = kind.__bases__[0].__name__
                declared[name] = None if kind is errors.EngineError else parent
    assert drawn == declared
