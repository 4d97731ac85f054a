"""The public face of a package: what its ``__init__`` imports for type checkers is loaded when it is first asked for.

A package lists what it offers once, as imports below ``if TYPE_CHECKING:``. Nothing is imported before it is used, so
that a process which needs one module of a package does not load them all, and modules of one package cannot import in
circles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def load_exports(package: str) -> Callable[[str], object]:
    """A ``__getattr__`` for the package, which imports an offered name from its module; AttributeError for other
    names.
    """
    modules: dict[str, str] = {}

    def load(name: str) -> object:
        if not modules:
            modules.update(read_exports(package))
        if name not in modules:
            raise AttributeError(f"package {package} offers no {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


def read_exports(package: str) -> dict[str, str]:
    """Each name that the package offers, with the module that defines it, as its source lists them.

    The source is read line by line, not parsed: a command reads some forty packages while it starts.
    """
    source = getattr(sys.modules[package].__loader__, "get_source", lambda _: None)(package)
    if source is None:
        raise ImportError(f"package {package} has no source to read its exports from: install it with its .py files")
    found: dict[str, str] = {}
    for line in source.partition("\nif TYPE_CHECKING:\n")[2].partition("\nelse:\n")[0].splitlines():
        module, _, names = line.strip().removeprefix("from ").partition(" import ")
        found.update(dict.fromkeys(names.split(", "), module))
    return found
