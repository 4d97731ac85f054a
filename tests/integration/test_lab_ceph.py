"""Guests whose disks are images of a real Ceph, on three real hosts: moved, sent away, recovered, and shut out.

Who wrote to a disk is read from the image's own blocks, and who runs from the machine's process table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from lab import story
from lab.ceph import POOL
from lab.command import proof, rehearsed
from lab.faults import heal
from lab.network import NetworkLab, Pings, guest_interface
from lab.processes import LabError, until

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.component("ipmi"), pytest.mark.component("ceph")]
pytestmark.append(pytest.mark.component("ovn"))
LIMIT_S = 120.0
"""On a machine that is busy with others."""
LIVE, COLD = "vm-1", "vm-2"
TALKER = "talker"
"""A guest with a port in OVN, which its host still reaches when it is shut out of everything else."""
HOME = "host-1"


class Cloud:
    """A lab with two guests, of which one is stopped for each move."""

    def __init__(self, lab: NetworkLab) -> None:
        self.lab = lab

    def place(self, name: str) -> list[str]:
        return story.places(self.lab)[name]

    def run(self, name: str) -> str:
        return story.runs(self.lab)[name]

    def counts_again(self, name: str, before: str) -> None:
        story.wait_counting(self.lab, [name], {name: before}, LIMIT_S)

    def writes(self, name: str) -> str:
        """Wait until it has written once more; the run that did."""
        last = story.newest(self.lab.disk(name)).seq
        found = until(lambda: _newer(story.newest(self.lab.disk(name)), last), f"{name} writes", LIMIT_S, 0.1)
        return str(found.run)

    def lockers(self, name: str) -> set[str]:
        """Addresses of those who have its image locked."""
        assert self.lab.ceph is not None
        found = json.loads(self.lab.ceph.rbd("lock", "ls", f"{POOL}/{name}", "--format", "json"))
        return {str(one["address"]).partition(":")[0] for one in found}

    def isolated(self) -> set[str]:
        """Addresses from which no client writes at all; an entry of a single client names that one."""
        assert self.lab.ceph is not None
        entries = self.lab.ceph.asked("osd", "dump")["blocklist"]
        return {one.removesuffix(":0/0") for one in entries if one.endswith(":0/0")}

    def hypervisor(self, name: str) -> dict[str, Any]:
        return next(one for one in self.lab.objects("hypervisors") if one["metadata"]["name"] == name)

    def record(self, name: str) -> dict[str, Any]:
        members = self.lab.objects("memberships")
        return dict(next(one["record"] for one in members if one["metadata"]["name"] == name))

    def one_writer(self, name: str) -> None:
        assert story.two_writers(self.lab.disk(name)) == ""


def _newer(seen: story.Written, last: int) -> story.Written | None:
    return seen if seen.seq > last else None


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    lab = NetworkLab(tmp_path_factory.mktemp("lab"), guests_count=2, homes=[HOME], on_ceph=True)
    try:
        for _ in lab.start():
            pass
        lab.outlive("vm", "meta", COLD, "--method", "shutdown")
        story.wait_counting(lab, lab.guests, {}, LIMIT_S)
        until(lambda: rehearsed(lab), "every BMC was tried and is good", LIMIT_S, 0.5)
        yield Cloud(lab)
    finally:
        lab.stop()
    assert lab.switch.plugged() == []


def test_a_host_is_emptied_and_takes_its_guests_back(cloud: Cloud) -> None:
    lab, before = cloud.lab, story.runs(cloud.lab)
    lab.outlive("drain", HOME, "--wait", limit_s=LIMIT_S)
    until(lambda: not any(HOME in cloud.place(name) for name in lab.guests), "nothing is left there", LIMIT_S, 0.1)
    assert cloud.hypervisor(HOME)["status"]["domainState"] == "flushed"
    cloud.counts_again(COLD, before[COLD])
    assert cloud.run(LIVE) == before[LIVE] == cloud.writes(LIVE), "it has moved while it ran"
    between = story.runs(lab)
    lab.outlive("ready", HOME, "--wait", limit_s=LIMIT_S)
    cloud.counts_again(COLD, between[COLD])  # its host is ready as soon as it is to start there
    until(lambda: story.places(lab) == {LIVE: [HOME], COLD: [HOME]}, "both run there alone", LIMIT_S, 0.1)
    assert cloud.run(LIVE) == before[LIVE]
    for name in lab.guests:
        cloud.one_writer(name)


def test_a_guest_is_moved_and_recovered_from_a_host_that_lost_power(cloud: Cloud) -> None:
    lab, runs, host = cloud.lab, story.runs(cloud.lab), cloud.lab.host("host-2")
    (definition,) = [one["spec"]["definition"] for one in lab.objects("vms") if one["metadata"]["name"] == LIVE]
    with pytest.raises(LabError, match="disk cache writeback leaves writes to its host"):
        lab.outlive("vm", "define", "-", stdin=definition.replace("cache='none'", "cache='writeback'"))
    before = runs[LIVE]
    lab.outlive("vm", "move", COLD, "--to", host.name)
    lab.outlive("vm", "move", LIVE, "--to", host.name, "--wait", limit_s=LIMIT_S)
    cloud.counts_again(COLD, runs[COLD])
    assert cloud.place(COLD) == [host.name]
    until(lambda: cloud.place(LIVE) == [host.name], "nothing of it is left on the source", LIMIT_S, 0.1)
    assert cloud.writes(LIVE) == before
    assert cloud.lockers(LIVE) == {host.address}
    host.power_off()
    cloud.counts_again(LIVE, before)
    (there,) = cloud.place(LIVE)
    assert cloud.writes(LIVE) == cloud.run(LIVE)
    assert cloud.lockers(LIVE) == {lab.host(there).address}, "the lock of the lost host was removed"
    assert cloud.isolated() <= {host.address}, "a proof by power ends the fence, isolated by then or not"
    until(lambda: proof(lab, host.name) == "power", "it is proven dead", LIMIT_S, 0.2)
    cloud.one_writer(LIVE)


def test_a_guest_of_a_host_that_lives_is_recovered_once_that_host_is_shut_out(cloud: Cloud) -> None:
    lab = cloud.lab
    heal(lab)
    until(lambda: cloud.isolated() == set(), "a host that has booted is let in", LIMIT_S, 0.2)
    before, (here,) = cloud.run(LIVE), cloud.place(LIVE)
    host = lab.host(here)
    lab.make_networks()
    lab.make_guest(TALKER, "layer2", host.name)
    address = lab.await_guest(TALKER)
    lab.warm_up("layer2", address)
    size = lab.console(TALKER).stat().st_size
    lab.controller(host).hang()
    lab.switch.isolate(host.name, "ceph")
    cloud.counts_again(LIVE, before)
    run = cloud.writes(LIVE)
    assert run != before
    assert len(cloud.place(LIVE)) == 2, "its old process lives"
    domain = ("domstate", LIVE, "--reason")
    refused = "paused (I/O error)"
    until(lambda: lab.libvirtd(host).virsh(*domain).strip() == refused, "its write is refused", LIMIT_S, 0.2)
    assert cloud.isolated() == {host.address}
    assert cloud.record(host.name)["cut"]["scope"]
    assert proof(lab, host.name) == "", "the cut alone was proof enough for its guest"
    assert cloud.writes(LIVE) == run
    cloud.one_writer(LIVE)
    assert lab.await_guest(TALKER, after=size, limit_s=LIMIT_S) == address
    lab.warm_up("layer2", address)
    assert host.name in lab.copies(TALKER), "its old process lives, and is bound nowhere"
    pings = Pings(lab.peer("layer2"), address)
    time.sleep(2.0)
    heard = pings.stop()
    assert (heard.doubled, heard.lost <= 1) == (0, True), f"the new one answers, alone: {heard}"
    until(lambda: f"isolated.{host.name}=" in port_row(lab), "its port is marked", LIMIT_S, 0.2)
    heal(lab)
    until(lambda: not host.on, "its BMC answers again, and switches it off", LIMIT_S, 0.2)
    until(
        lambda: proof(lab, host.name) == "power",
        "that is proven: a host that is on again before is off again",
        60.0,
        0.2,
    )
    heal(lab)
    until(lambda: "isolated" not in port_row(lab), "its ports are let go once the host has booted", LIMIT_S, 0.2)


def port_row(lab: NetworkLab) -> str:
    assert lab.ovn is not None
    return lab.ovn.nbctl("--bare", "--columns=external_ids", "list", "Logical_Switch_Port", guest_interface(TALKER))
