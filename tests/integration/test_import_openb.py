"""A real production inventory, as it is: imported, placed, planned for one and for two failures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.support.command import outlive

pytestmark = pytest.mark.component("shared")
MAPS = (
    "--host-map", "name=sn,cpu=cpu_milli:m,memory=memory_mib:Mi",
    "--vm-map", "id=name,cpu=cpu_milli:m,memory=memory_mib:Mi",
    "--where", "pod_phase=Running",
)  # fmt: skip


@pytest.fixture(scope="module")
def files() -> list[str]:
    folder = Path(os.environ["OUTLIVE_SHARED"]) / "data" / "openb"
    return ["--hosts", str(folder / "nodes.csv"), "--vms", str(folder / "pods.csv")]


@pytest.fixture(scope="module")
def state(files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All hosts, and every running workload placed."""
    directory = tmp_path_factory.mktemp("openb") / "state"
    result = outlive(
        "import", "csv", *files, *MAPS, "--place", "--domains", "rack=32", "--state-dir", directory, "-o", "json"
    )
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["hosts"]["created"] == 1523
    assert document["vms"]["created"] == 5193
    assert document["leftOut"] == 2959
    assert document["placed"] == 5193
    assert document["unplaced"] == []
    path = directory.parent / "state.json"
    path.write_text(outlive("dump", "--state-dir", directory).out)
    return path


@pytest.mark.parametrize("k", [1, 2])
def test_every_running_workload_can_be_covered(state: Path, k: int) -> None:
    result = outlive("failover", "plan", "-k", str(k), "--state", state, "-o", "json")
    document = json.loads(result.out)
    assert result.code == 0
    after = document["after"]
    assert (after["required"], after["covered"], after["uncovered"]) == (5193, 5193, [])
    assert after["tolerance"] == k
    assert after["slots"] >= after["bound"]["slots"]


def test_hosts_are_labelled_in_racks_of_32(state: Path) -> None:
    hosts = json.loads(outlive("get", "hosts", "--state", state, "-o", "json").out)["items"]
    racks = [host["metadata"]["labels"]["outlive.dev/domain-rack"] for host in hosts]
    assert len(set(racks)) == 48
    assert max(racks.count(rack) for rack in set(racks)) == 32


def test_no_host_is_filled_beyond_its_capacity(state: Path) -> None:
    from outlive.resources import Hypervisor, decode_state

    for item in decode_state(state.read_bytes()).objects:
        if isinstance(item, Hypervisor):
            capacity, allocation = item.status.capacity, item.status.allocation
            assert capacity is not None
            assert allocation is not None
            assert all(allocation[name] <= capacity[name] for name in ("cpu", "memory"))


def first_racks(state: Path, count: int) -> Path:
    """The state with these racks of hosts and their VMs only."""
    document = json.loads(state.read_text())
    racks = {f"rack-{number:03}" for number in range(1, count + 1)}
    hosts, kept = set(), []
    for one in sorted(document["objects"], key=lambda one: one["kind"] != "Hypervisor"):
        if one["kind"] == "Hypervisor" and one["metadata"]["labels"]["outlive.dev/domain-rack"] in racks:
            hosts.add(one["metadata"]["name"])
        if one["kind"] == "VirtualMachine":
            wanted = one["status"]["assigned"]["hypervisor"] in hosts
        else:
            wanted = one["kind"] != "Hypervisor" or one["metadata"]["name"] in hosts
        if wanted:
            kept.append(one)
    path = state.parent / f"{count}-racks.json"
    path.write_text(json.dumps({**document, "objects": kept}))
    return path


@pytest.mark.slow
def test_a_rack_of_eight_fails_and_every_vm_runs_again_and_nothing_is_violated(state: Path) -> None:
    """A sample; ``scripts/bench simulation`` plays all hosts."""
    options = ("--fail", "rack=rack-003", "--at", "5s", "--for", "25s", "-o", "json")
    result = outlive("simulate", "--inventory", first_racks(state, 8), *options)
    document = json.loads(result.out)
    assert (document["violations"], document["failed"]) == ([], [])
    assert document["recovered"] == document["lost"] > 0
    assert document["heldVms"] == []
