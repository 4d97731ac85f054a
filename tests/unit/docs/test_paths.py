"""Four paths through the product do not get longer: as many modules work on an event as are written down, or fewer.

``paths.json`` holds the numbers, which only fall. ``python -m tests.support.traced_paths --record`` writes down those
of today; ``docs/design/architecture.md`` shows them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.traced_paths import PATHS, RECORD, trace_path

PAGE = Path(__file__).parents[3] / "docs" / "design" / "architecture.md"
RECORDED: dict[str, int] = json.loads(RECORD.read_text(encoding="utf-8"))
SHOW = "python -m tests.support.traced_paths prints the modules of each path; make this one shorter"
STATIONS = {
    "reserve": ("drivers/", "inventory/", "failover/planner/", "failover/reconciler/"),
    "recover": ("node/fencing/", "recovery/", "node/vm/"),
    "rank": ("api/", "placement/filters/"),
    "sell": ("api/", "commitments/controllers/"),
}
"""Where a path leads: a trace that finds no module there has not seen the path."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PATHS))
def test_a_path_has_no_more_modules_than_before(name: str) -> None:
    modules = trace_path(PATHS[name][0])
    unseen = [place for place in STATIONS[name] if not any(module.startswith(place) for module in modules)]
    assert unseen == [], f"{name}: the trace has not seen {unseen}"
    assert len(modules) <= RECORDED[name], f"{name}: {len(modules)} modules, before {RECORDED[name]}; {SHOW}"


def test_the_page_says_how_many_modules_each_path_has() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| (\d+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    said = {name: (int(modules), int(aim)) for name, modules, aim in rows}
    assert said == {name: (RECORDED[name], aim) for name, (_, aim) in PATHS.items()}
