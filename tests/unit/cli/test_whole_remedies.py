"""What ``explain --fleet`` proposes for everybody is what ``whatif require`` says is short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.certified import documents, fleet, planned, resources, settings, state_file
from tests.support.command import outlive

from outlive.base import Random


def state(path: Path, *, hosts: int, vms: int, spare: int, needs: int) -> Path:
    """A fleet whose hosts have so many spare cores each, with the slots of a plan for ``needs``."""
    plain = documents(fleet(Random(7), hosts, vms))
    for one in plain:
        if one["kind"] == "Hypervisor":
            used = one["status"]["allocation"].get("cpu", "0")
            milli = int(used[:-1]) if str(used).endswith("m") else 1000 * int(used)
            one["status"]["capacity"]["cpu"] = f"{milli + 1000 * spare}m"
    path.write_bytes(state_file(planned(resources(plain), settings({"*": needs}))))
    return path


def asked(*arguments: object) -> dict[str, Any]:
    done = outlive(*arguments, "-o", "json")
    assert done.code in (0, 1), done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("spare", [2, 4, 8])
def test_hosts_that_explain_proposes_are_those_that_require_is_short_of(tmp_path: Path, spare: int) -> None:
    path = state(tmp_path / "state.json", hosts=8, vms=24, spare=spare, needs=1)
    reported = asked("failover", "explain", "--fleet", "-k", "2", "--state", path)
    answer = asked("whatif", "require", "*=2", "--state", path)
    proposed = [one for group in reported["groups"] for one in group["remedy"].get("actions", ()) if "count" in one]
    if answer["possible"]:
        assert not proposed
        assert answer["shortHosts"] == 0
    else:
        assert {one["count"] for one in proposed} == {answer["shortHosts"]}
        assert f"{answer['shortHosts']} more host" in reported["everybody"]


@pytest.mark.slow
def test_a_no_is_called_proven_only_where_counting_shows_it(tmp_path: Path) -> None:
    path = state(tmp_path / "state.json", hosts=4, vms=8, spare=64, needs=1)
    answer = asked("whatif", "require", "*=4", "--state", path)
    assert (answer["possible"], answer["proven"]) == (False, True), "three other hosts cannot hold four slots"
    scarce = state(tmp_path / "scarce.json", hosts=8, vms=24, spare=4, needs=1)
    answer = asked("whatif", "require", "*=2", "--state", scarce)
    if not answer["possible"] and not answer["proven"]:
        assert "does not show that there is none" in outlive("whatif", "require", "*=2", "--state", scarce).out
    empty = state(tmp_path / "none.json", hosts=8, vms=24, spare=1, needs=0)
    answer = asked("whatif", "require", "*=2", "--state", empty)
    assert (answer["possible"], answer["proven"]) == (False, True), "slots hold more than all hosts have"
