"""``outlive failover plan --repack`` and ``--effort``: they hold less for the same promise, and say what they did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import outlive

HOSTS = 10
VMS = 30


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    """Every VM has two slots, in a state that is not packed."""
    names = [f"h{number}" for number in range(HOSTS)]
    (tmp_path / "hosts.csv").write_text("name,cpu,memory\n" + "".join(f"{name},64,256Gi\n" for name in names))
    rows = [f"v{number:02},{names[number % HOSTS]},2,{4 + 4 * (number % 3)}Gi,m1\n" for number in range(VMS)]
    (tmp_path / "vms.csv").write_text("id,host,cpu,memory,flavor\n" + "".join(rows))
    state = tmp_path / "state"
    tables = ("--hosts", tmp_path / "hosts.csv", "--vms", tmp_path / "vms.csv")
    assert outlive("import", "csv", *tables, "--state-dir", state).code == 0
    return state


@pytest.mark.slow
def test_repacking_changes_no_more_than_allowed_and_what_is_held_shrinks(cloud: Path) -> None:
    assert outlive("failover", "plan", "--apply", "--state-dir", cloud).code == 0
    reported = outlive("failover", "plan", "--repack", "20", "--apply", "--state-dir", cloud, "-o", "json")
    assert reported.code == 0, reported.err
    answer = json.loads(reported.out)
    assert answer["changes"] <= 20
    before, after = answer["before"], answer["after"]
    assert after["covered"] == before["covered"] == VMS
    assert after["reserved"]["memoryBytes"] <= before["reserved"]["memoryBytes"]
    now = json.loads(outlive("failover", "coverage", "--state-dir", cloud, "-o", "json").out)
    assert (now["covered"], now["slots"], now["reserved"]) == (VMS, after["slots"], after["reserved"])
    assert outlive("failover", "check", "--state-dir", cloud).code == 0


@pytest.mark.slow
def test_a_search_gives_the_same_plan_twice_and_reserves_no_more(cloud: Path) -> None:
    plain = json.loads(outlive("failover", "plan", "--state-dir", cloud, "-o", "json").out)
    search = ("failover", "plan", "--effort", "300ms", "--seed", "4", "--state-dir", cloud, "-o", "json")
    one, again = (json.loads(outlive(*search).out) for _ in range(2))
    if not (one["search"]["cutShort"] or again["search"]["cutShort"]):
        assert one == again
    assert one["after"]["covered"] == VMS
    assert one["after"]["reserved"]["memoryBytes"] <= plain["after"]["reserved"]["memoryBytes"]


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
