"""Imports as operators repeat them: one bad row, a host that got another name, a status that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command import Result, outlive, up
from tests.support.hosts import within

LIMIT_S = 60.0
HOSTS = "name,cpu,memory,zone\nkvm-1,8,32Gi,a\nkvm-2,8,32Gi,a\n"
VMS = "id,cpu,memory,host,status\nweb-1,4,20Gi,kvm-1,ACTIVE\nweb-2,4,20Gi,kvm-2,ACTIVE\n"


def imported(folder: Path, hosts: str, vms: str, *more: str) -> Result:
    (folder / "hosts.csv").write_text(hosts)
    (folder / "vms.csv").write_text(vms)
    files = ["--hosts", folder / "hosts.csv", "--vms", folder / "vms.csv"]
    return outlive("import", "csv", *files, "--state-dir", folder / "state", *more)


def names(folder: Path, kind: str) -> list[str]:
    items = json.loads(outlive("get", kind, "--state-dir", folder / "state", "-o", "json").out)["items"]
    return sorted(item["metadata"]["name"] for item in items)


def test_one_bad_row_blocks_all_others_only_without_skip_bad(tmp_path: Path) -> None:
    bad = VMS + "odd,4,8Gi,kvm-1,sleeps\nodd-2,4,8Gi\nodd-3,4,8,kvm-1,ACTIVE\n"
    assert imported(tmp_path, HOSTS, bad).code == 3
    assert not (tmp_path / "state").exists() or names(tmp_path, "vms") == []
    result = imported(tmp_path, HOSTS, bad, "--skip-bad", "-o", "json")
    assert result.code == 1
    assert names(tmp_path, "vms") == ["web-1", "web-2"]
    for line, word in (("vms.csv:4", "sleeps"), ("vms.csv:5", "3 cells"), ("vms.csv:6", "memory 8,")):
        assert any(line in one and word in one for one in result.err.splitlines()), result.err
    document = json.loads(result.out)
    assert (document["badPlaces"], len(document["bad"])) == (3, 3)
    assert imported(tmp_path, HOSTS, VMS, "--skip-bad").code == 0


def test_no_slot_is_planned_on_a_host_that_got_another_name(tmp_path: Path) -> None:
    assert imported(tmp_path, HOSTS, VMS).code == 0
    again = imported(tmp_path, HOSTS.replace("kvm-1", "kvm-1-new"), VMS.replace("kvm-1", "kvm-1-new"))
    assert "no longer lists, which hold no slots until it does: 1 (kvm-1); delete them with --prune" in again.out
    plan = outlive("failover", "plan", "--state-dir", tmp_path / "state", "-k", "1", "-o", "json")
    assert json.loads(plan.out)["failed"] == 2


def test_vms_that_are_gone_need_no_slot_and_take_no_room(tmp_path: Path) -> None:
    assert imported(tmp_path, HOSTS, VMS).code == 0
    again = imported(tmp_path, HOSTS, VMS.replace("web-1,4,20Gi,kvm-1,ACTIVE\n", ""))
    assert "VMs that the source no longer lists, which get no slots and take no room: 1 (web-1)" in again.out
    plan = json.loads(outlive("failover", "plan", "--state-dir", tmp_path / "state", "-k", "1", "-o", "json").out)
    assert (plan["missing"], plan["created"], plan["failed"]) == (1, 1, 0)


def test_what_a_word_means_can_be_said(tmp_path: Path) -> None:
    odd = VMS.replace("kvm-1,ACTIVE", "kvm-1,sleeps")
    assert "--status-map" in imported(tmp_path, HOSTS, odd).err
    assert "VMs that do not run" in imported(tmp_path, HOSTS, odd, "--status-map", "sleeps=stopped").out


def test_prune_and_partial_contradict_each_other(tmp_path: Path) -> None:
    result = imported(tmp_path, HOSTS, VMS, "--prune", "--partial")
    assert (result.code, "--prune" in result.err) == (2, True)


def test_a_running_server_leaves_no_slot_on_a_host_that_vanished(tmp_path: Path) -> None:
    three = "name,cpu,memory,zone\n" + "".join(f"kvm-{n},8,32Gi,a\n" for n in (1, 2, 3))
    vms = "id,cpu,memory,host,status\nweb-1,4,8Gi,kvm-1,ACTIVE\nweb-2,4,8Gi,kvm-2,ACTIVE\n"
    assert imported(tmp_path, three, vms).code == 0

    def slot_hosts() -> set[str]:
        items = json.loads(outlive("get", "reservations", "--state-dir", tmp_path / "state", "-o", "json").out)["items"]
        return {item["status"].get("host", "") for item in items}

    def covered() -> tuple[int, int]:
        found = json.loads(outlive("failover", "coverage", "--state-dir", tmp_path / "state", "-o", "json").out)
        return found["required"], found["covered"]

    with up(tmp_path / "state"):
        assert within(LIMIT_S, lambda: "kvm-3" in slot_hosts())
        assert imported(tmp_path, three.replace("kvm-3", "kvm-3-new"), vms).code == 0

        def is_settled() -> bool:
            hosts = slot_hosts()
            return "kvm-3" not in hosts and "kvm-3-new" in hosts and covered() == (2, 2)

        assert within(LIMIT_S, is_settled), (slot_hosts(), covered())
