"""The table of levels in docs/concepts/coverage.md is what its settings give on its hosts."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.command import imported, outlive

PAGE = (Path(__file__).parents[2] / "docs/concepts/coverage.md").read_text()


def test_the_levels_of_the_page_cost_what_it_says(tmp_path: Path) -> None:
    settings, printed = re.findall(r"^```(?:yaml)?\n((?:protection:|Level ).*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    config = tmp_path / "levels.yaml"
    config.write_text(settings)
    names = [f"h{number}" for number in range(1, 7)]
    hosts = "name,cpu,memory\n" + "".join(f"{name},64,256Gi\n" for name in names)
    rows = [
        f"{flavor}{copy}-{name},{name},2,8Gi,{flavor}_8\n"
        for name in names
        for flavor, copy in (("db", ""), ("std", 1), ("std", 2))
    ]
    state = ("--state-dir", imported(tmp_path, hosts, "id,host,cpu,memory,flavor\n" + "".join(rows)))
    assert outlive("failover", "plan", "--apply", "--config", config, *state).code == 0
    shown = outlive("failover", "coverage", "--config", config, *state).out
    assert printed in f"{shown}\n", shown
