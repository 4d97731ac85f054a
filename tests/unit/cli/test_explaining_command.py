"""``outlive failover explain``: what it prints, and what it answers by exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import imported, outlive

from outlive.cli import TextTable, VmColumns, fleet_lines, table_lines
from outlive.failover.analysis.explain import FleetExplanation
from outlive.resources import convert

HOSTS = "name,zone,cpu,memory\nh1,a,8,16Gi\nh2,a,8,16Gi\nh3,a,8,16Gi\nh4,b,8,16Gi\nh5,a,16,32Gi\n"
VMS = "id,host,cpu,memory,flavor,zone\nweb,h1,2,4Gi,small,a\ndb,h5,9,18Gi,large,a\nfar,h4,2,4Gi,small,b\n"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two slots a VM are asked for: ``web`` has them, ``db`` is too large, and ``far`` is alone in its zone."""
    state = imported(tmp_path_factory.mktemp("cloud"), HOSTS, VMS)
    outlive("failover", "plan", "--apply", "--state-dir", state)
    return state


def test_a_covered_vm_is_a_yes(cloud: Path) -> None:
    reported = outlive("failover", "explain", "web", "--state-dir", cloud)
    assert reported.code == 0, reported.err
    assert reported.out.startswith("web is covered: 2 of 2 slots, so that it survives the failure of any 2 hosts.\n")


def test_an_uncovered_vm_is_a_no_with_reasons_and_a_remedy(cloud: Path) -> None:
    reported = outlive("failover", "explain", "far", "--state-dir", cloud)
    assert reported.code == 1, reported.err
    lines = reported.out.splitlines()
    assert lines[0].startswith("far is not covered: 0 of 2 slots; it runs on h4 in zone b")
    assert lines[2] == "Of 5 hosts 1 is its own and 4 are not in zone b."
    assert "What helps: add 2 hosts in zone b, each with at least 2 cpu and 4Gi memory free." in lines


def test_json_names_every_host_and_slot(cloud: Path) -> None:
    reported = outlive("failover", "explain", "db", "--state-dir", cloud, "-o", "json")
    assert reported.code == 1
    answer = json.loads(reported.out)
    assert [one["host"] for one in answer["hosts"]] == ["h1", "h2", "h3", "h4", "h5"]
    assert {one["reason"] for one in answer["slots"]} == {"slot-too-small"}
    assert answer["remedy"]["tried"] is True
    assert answer["remedy"]["actions"][0]["action"] == "add-hosts"


def test_a_fleet_is_a_no_while_anybody_misses_slots(cloud: Path) -> None:
    reported = outlive("failover", "explain", "--fleet", "--state-dir", cloud)
    assert reported.code == 1
    assert reported.out.startswith("2 of 3 VMs that need slots miss some.\n")
    nobody = outlive("failover", "explain", "--fleet", "-k", "0", "--state-dir", cloud)
    assert (nobody.code, nobody.out) == (0, "No VM needs slots.\n")


@pytest.mark.parametrize(("arguments", "code"), [(("nobody",), 4), ((), 2), (("web", "--fleet"), 2)])
def test_a_question_about_nobody_or_nothing_is_refused(cloud: Path, arguments: tuple[str, ...], code: int) -> None:
    reported = outlive("failover", "explain", *arguments, "--state-dir", cloud)
    assert reported.code == code
    assert reported.line.startswith("outlive: ")


def test_what_helps_a_fleet_is_read_whole_in_80_columns(cloud: Path) -> None:
    answer = outlive("failover", "explain", "--fleet", "--state-dir", cloud, "-o", "json")
    groups = convert(FleetExplanation, json.loads(answer.out))
    shown = [
        line
        for part in fleet_lines(groups, VmColumns(), wide=False)
        if isinstance(part, TextTable)
        for line in table_lines(part, 80)
    ]
    text = " ".join(" ".join(shown).split())
    assert max(map(len, shown)) <= 80
    assert len(groups.groups) == 2
    for group in groups.groups:
        assert group.text in text
