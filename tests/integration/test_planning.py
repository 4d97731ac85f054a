"""``outlive failover plan`` with a search, and repacking: what is told, what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import imported, outlive

HOSTS = "name,cpu,memory,zone\n" + "".join(f"h{n:02},64,256Gi,z1\n" for n in range(14))
VMS = "id,cpu,memory,host,flavor\n" + "".join(f"v{n:03},2,{4 << n % 2}Gi,h{n % 14:02},m{n % 2}\n" for n in range(42))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return imported(tmp_path, HOSTS, VMS)


def document(*arguments: str | Path) -> dict[str, Any]:
    result = outlive("failover", *arguments, "-o", "json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_a_search_tells_what_it_saved_and_is_the_same_again(state: Path) -> None:
    asked = ("plan", "--effort", "2s", "--seed", "3", "--state-dir", state)
    found = document(*asked)
    search, after = found["search"], found["after"]
    assert (search["effortSeconds"], search["seed"], search["cutShort"]) == (2.0, 3, False)
    assert after["covered"] == 42
    assert after["reserved"]["memoryBytes"] < search["without"]["reserved"]["memoryBytes"]
    assert found["before"] == {"slots": 0, "reserved": {"cpuMilli": 0, "memoryBytes": 0}}
    bound = after["bound"]
    assert bound["memoryGapBytes"] == after["reserved"]["memoryBytes"] - bound["memoryBytes"] >= 0
    assert document(*asked) == found
    assert "the search brought" in outlive("failover", *asked).out


def test_a_searched_plan_is_written_as_it_was_told(state: Path) -> None:
    reported = document("plan", "--effort", "1s", "--apply", "--state-dir", state)["after"]
    now = document("coverage", "--state-dir", state)
    assert (now["slots"], now["covered"], now["reserved"]) == (reported["slots"], 42, reported["reserved"])
    assert outlive("failover", "check", "--state-dir", state).code == 0


def test_repacking_shows_its_moves_and_makes_them_only_when_told(state: Path) -> None:
    few = ("--state-dir", state)
    assert outlive("failover", "plan", "--apply", *few).code == 0
    asked = ("plan", "--repack", "40", "--effort", "1s", *few)
    shown = document(*asked)
    assert shown["changes"] <= 40
    assert not shown["applied"]
    assert document("coverage", *few)["slots"] == shown["before"]["slots"]
    made = document(*asked, "--apply")
    assert made["moves"] == shown["moves"]
    now = document("coverage", *few)
    assert (now["slots"], now["covered"], now["tolerance"]) == (made["after"]["slots"], 42, 2)
    assert now["reserved"]["memoryBytes"] <= shown["before"]["reserved"]["memoryBytes"]
    assert outlive("failover", "check", *few).code == 0


@pytest.mark.parametrize("effort", ["soon", "60", "25h", "-5s"])
def test_an_effort_that_is_no_duration_or_too_long_is_refused(state: Path, effort: str) -> None:
    assert outlive("failover", "plan", f"--effort={effort}", "--state-dir", state).code in (2, 3)
