"""``outlive failover plan --repack`` and ``--effort``: they hold less for the same promise, and say what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import imported, outlive

HOSTS = 10
VMS = 30


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    """Every VM has two slots, in a state that is not packed."""
    names = [f"h{number}" for number in range(HOSTS)]
    hosts = "name,cpu,memory\n" + "".join(f"{name},64,256Gi\n" for name in names)
    rows = [f"v{number:02},{names[number % HOSTS]},2,{4 + 4 * (number % 3)}Gi,m1\n" for number in range(VMS)]
    return imported(tmp_path, hosts, "id,host,cpu,memory,flavor\n" + "".join(rows))


@pytest.mark.slow
def test_nobody_moves_while_a_rule_is_broken_and_that_is_said(cloud: Path, tmp_path: Path) -> None:
    assert outlive("failover", "plan", "--apply", "--state-dir", cloud).code == 0
    state = tmp_path / "state.json"
    document = json.loads(outlive("dump", "--state-dir", cloud).out)
    slot = next(one for one in document["objects"] if one["kind"] == "Reservation")
    slot["status"]["host"] = next(iter(slot["status"]["failoverReservation"]["allocations"].values()))
    state.write_text(json.dumps(document))
    reported = outlive("failover", "plan", "--repack", "20", "--state", state)
    assert reported.out.startswith("nothing was found to repack: nobody moves while a rule is broken")
