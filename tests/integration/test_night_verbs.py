"""What an operator decides at night has a verb: each writes one field, and refuses what would mean more than it says.

The states are those of scenarios, stopped in the middle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Result, outlive
from tests.support.nights import state_of


class Night:
    """The store of a story at that second, as a state directory."""

    def __init__(self, folder: Path, scenario: str, at_s: float) -> None:
        self.store = folder / "store"
        state = folder / "state.json"
        state.write_bytes(state_of(scenario, at_s))
        applied = outlive("apply", "-f", state, "--state-dir", self.store)
        assert applied.code == 0, applied.err

    def run(self, *words: str) -> Result:
        return outlive(*words, "--state-dir", self.store)

    def spec(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("get", kind, name, "-o", "json").out).get("spec", {})
        return found


def only_change(before: dict[str, Any], after: dict[str, Any], *path: str) -> Any:
    """The new value at the path, which is all that has changed."""
    before, after = json.loads(json.dumps(before)), json.loads(json.dumps(after))
    inner, new = before, after
    for part in path[:-1]:
        inner, new = inner.setdefault(part, {}), new[part]
    value = new[path[-1]]
    inner[path[-1]] = value
    assert before == after
    return value


@pytest.fixture
def lying(tmp_path: Path) -> Night:
    """A BMC has lied about kvm-4."""
    return Night(tmp_path, "lying-power-controller-is-found-out", 75)


def test_fencing_is_released_with_a_reason_and_nothing_else_of_the_cluster_changes(lying: Night) -> None:
    before = lying.spec("cluster", "default")
    assert lying.run("fence", "release", "--yes").code == 2
    done = lying.run("fence", "release", "--reason", "switch is back", "--operator", "ada", "--yes")
    assert done.code == 0, done.err
    word = only_change(before, lying.spec("cluster", "default"), "fencing", "release")
    assert word.endswith("|ada|switch is back")
    assert lying.run("fence", "release", "--reason", "x").code == 2  # nobody is there to answer


def test_a_distrusted_proof_is_trusted_again_by_its_kind(lying: Night) -> None:
    before = lying.spec("host", "kvm-4")
    wrong = lying.run("host", "trust", "kvm-4", "watchdog", "--yes")
    assert wrong.code == 1
    assert "watchdog is not distrusted of kvm-4" in wrong.err
    assert lying.run("host", "trust", "kvm-1", "power", "--yes").out == "kvm-1 is trusted already\n"
    done = lying.run("host", "trust", "kvm-4", "power", "--yes")
    assert done.code == 0, done.err
    assert only_change(before, lying.spec("host", "kvm-4"), "fencing", "trustAgain")


def test_a_host_becomes_a_coordinator_and_the_last_one_stays_one(lying: Night) -> None:
    hosts = json.loads(lying.run("get", "hosts", "-o", "json").out)["items"]
    modes = {one["metadata"]["name"]: one["spec"].get("mode", "hypervisor") for one in hosts}
    coordinators = sorted(name for name, mode in modes.items() if mode == "coordinator")
    other = next(name for name, mode in sorted(modes.items()) if mode != "coordinator")
    before = lying.spec("host", other)
    done = lying.run("host", "promote", other)
    assert done.code == 0, done.err
    assert "restart its daemon" in done.out
    assert only_change(before, lying.spec("host", other), "mode") == "coordinator"
    assert lying.run("host", "promote", other).out == f"{other} is a coordinator already\n"
    assert lying.run("host", "demote", ",".join(coordinators)).code == 0
    last = lying.run("host", "demote", other)
    assert last.code == 1
    assert f"{other} is the last coordinator" in last.err


def test_a_shutdown_policy_is_set_for_hosts_or_the_cluster(lying: Night) -> None:
    before, cluster = lying.spec("host", "kvm-1"), lying.spec("cluster", "default")
    assert lying.run("host", "shutdown-policy", "kvm-1,kvm-2", "freeze").code == 0
    assert only_change(before, lying.spec("host", "kvm-1"), "shutdownPolicy") == "freeze"
    assert lying.run("host", "shutdown-policy", "--cluster", "migrate").code == 0
    assert only_change(cluster, lying.spec("cluster", "default"), "shutdownPolicy") == "migrate"
    assert lying.run("host", "shutdown-policy", "kvm-1", "default").code == 0
    assert lying.spec("host", "kvm-1") == before
    assert lying.run("host", "shutdown-policy", "kvm-1", "burn").code == 2
    assert lying.run("host", "shutdown-policy", "freeze").code == 2
    assert lying.run("host", "shutdown-policy", "nobody", "freeze").code == 4


def test_a_restored_cluster_goes_on_once_every_host_that_it_waits_for_is_confirmed_lost(tmp_path: Path) -> None:
    night = Night(tmp_path, "backup-is-restored-while-a-host-is-away", 60)
    pause = json.loads(night.run("get", "cluster", "default", "-o", "json").out)["status"]["pause"]
    missing = pause["waitsFor"]
    assert missing
    wrong = night.run("restore", "--confirm", "kvm-9", "--yes")
    assert wrong.code == 1
    assert "does not wait for kvm-9" in wrong.err
    before = night.spec("cluster", "default")
    done = night.run("restore", "--confirm", ",".join(missing), "--yes")
    assert done.code == 0, done.err
    assert only_change(before, night.spec("cluster", "default"), "confirmedIncarnation")
    assert "is not paused" in night.run("restore", "--confirm", missing[0], "--yes").out


def test_restore_takes_a_backup_or_lost_hosts(tmp_path: Path) -> None:
    assert outlive("restore", "--state-dir", tmp_path).code == 2
    assert outlive("restore", "backup.db", "--confirm", "kvm-1", "--state-dir", tmp_path).code == 2


def test_a_host_that_is_called_like_a_command_is_fenced_by_the_noun(lying: Night) -> None:
    done = lying.run("host", "fence", "release", "--reason", "x")
    assert done.code == 4
    assert "release" in done.err


def test_drain_of_a_host_that_there_is_not_drains_none(lying: Night) -> None:
    before = lying.spec("host", "kvm-1")
    assert lying.run("drain", "kvm-1", "nobody").code == 4
    assert lying.spec("host", "kvm-1") == before
