"""Which decisions a page of docs/design lists, and in which modules it says that they are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import outlive
from outlive.runtime import Decision

DESIGN: Final = Path(__file__).parents[2] / "docs/design"
SOURCE: Final = Path(outlive.__file__).parent


def listed_modules(page: str) -> dict[str, str]:
    """Name of each decision that the page lists → the module that it names."""
    text = (DESIGN / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^\| (?:<a [^>]*></a>)?`([\w.]+)` \| .+ \| `(?:outlive/)?([\w/]+\.py)` \|$", text, re.M))


def actual_modules(decisions: Iterable[Decision[Any, Any]], package: str = "") -> dict[str, str]:
    """Name of each decision → the module of its function, below the package if it is there."""
    return {one.name: _module_of(one).removeprefix(f"{package}/") for one in decisions}


def _module_of(decision: Decision[Any, Any]) -> str:
    return Path(inspect.getfile(decision.function)).relative_to(SOURCE).as_posix()
