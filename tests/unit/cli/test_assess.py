"""Whether another system's cluster is N+1, from its files: yes, no and what to add, what is not known; nothing kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import outlive

GIB = 2**30


def cluster(path: Path, *, guest_gib: int = 64) -> str:
    nodes = [
        {"type": "node", "node": f"pve{number}", "status": "online", "maxcpu": 32, "maxmem": 128 * GIB}
        for number in (1, 2, 3)
    ]
    guests = [
        {
            "type": "qemu", "vmid": 100 + number, "name": f"db-{number}", "node": f"pve{number}",
            "status": "running", "maxcpu": 8, "maxmem": guest_gib * GIB,
        }
        for number in (1, 2, 3)
    ]  # fmt: skip
    path.write_text(json.dumps([*nodes, *guests]), encoding="utf-8")
    return str(path)


def test_a_cluster_that_survives_a_host_says_so_and_what_that_holds(tmp_path: Path) -> None:
    done = outlive("assess", "proxmox", cluster(tmp_path / "c.json"), "-o", "json")
    found = json.loads(done.out)
    assert (done.code, found["holds"], found["toAdd"]) == (0, True, None)
    assert found["coverage"]["covered"] == 3
    assert found["room"]["capacity"] == {"cpuMilli": 96_000, "memoryBytes": 384 * GIB}
    room = [found["room"][name]["memoryBytes"] for name in ("capacity", "vms", "slots", "left")]
    assert room[0] - room[1] - room[2] == room[3] > 0
    assert any("networks" in one for one in found["notKnown"])


def test_a_cluster_that_does_not_says_which_vms_and_what_to_add(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = outlive("assess", "proxmox", cluster(tmp_path / "c.json", guest_gib=100), "--html", str(report))
    assert done.code == 1
    assert done.out.startswith("no: some VMs cannot be restarted after the failure of any host")
    assert "more host" in done.out
    assert "nothing was kept" in done.out
    assert "Coverage" in report.read_text(encoding="utf-8")


def test_nothing_is_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    outlive("assess", "proxmox", cluster(tmp_path / "c.json"), "--state-dir", str(state))
    assert not state.exists()


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        (("vmware", "x"), 2, "format 'vmware' is not known"),
        (("rvtools", "x"), 2, "rvtools takes VHOST VINFO, not 1 file"),
        (("libvirt", "nowhere"), 4, "no such folder"),
        (("proxmox", "nowhere"), 4, "nowhere"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, given: tuple[str, ...], code: int, why: str) -> None:
    done = outlive("assess", *given)
    assert (done.code, why in done.err) == (code, True)
