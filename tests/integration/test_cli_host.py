"""``outlive host`` on a state directory: what is shown of hosts, and who is the primary coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import Result, outlive

STATE = """
apiVersion: outlive.dev/v1alpha1
kind: Hypervisor
metadata: {name: kvm-10, labels: {topology.kubernetes.io/zone: north}}
spec: {management: node, mode: coordinator}
status:
  capacity: {cpu: "8", memory: 4Gi}
  allocation: {cpu: "2", memory: 3Gi}
  numInstances: 2
  domainState: ready
  capabilities: {cpuArch: x86_64, cpus: 8, kernel: 6.1.0, os: Debian GNU/Linux 12 (bookworm)}
  version: 1.2.3
  addresses: {cluster: 10.0.0.1}
---
apiVersion: outlive.dev/v1alpha1
kind: Hypervisor
metadata: {name: kvm-9}
spec: {management: node, drain: true}
---
apiVersion: outlive.dev/v1alpha1
kind: HypervisorUsage
metadata: {name: kvm-10}
usage: {provisioned: {cpu: "2", memory: 5Gi}, used: {memory: 1Gi}, load: 0.5, scores: {store: 90}}
---
apiVersion: outlive.dev/v1alpha1
kind: Fault
metadata: {name: guard-not-armed.kvm-10}
code: guard-not-armed
subject: {kind: Hypervisor, name: kvm-10}
message: kvm-10 is not armed
delta: 10
firstSeen: 2026-01-01T00:00:00Z
lastSeen: 2026-01-01T00:00:00Z
---
apiVersion: outlive.dev/v1alpha1
kind: Election
metadata: {name: primary}
record: {holder: kvm-10, term: 3}
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state.yaml").write_text(STATE)
    done = outlive("apply", "--status", "-f", tmp_path / "state.yaml", "--state-dir", tmp_path / "state")
    assert done.code == 0, done.err
    return tmp_path / "state"


def host(state: Path, *arguments: str) -> Result:
    return outlive("host", *arguments, "--state-dir", state)


def test_hosts_are_listed_in_the_order_of_their_numbers(state: Path) -> None:
    lines = host(state, "list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["Name", "kvm-9", "kvm-10"]
    assert "no: it is to be emptied" in lines[1]
    for shown in ("not a member", "primary", "2 of 8", "3,072 of 4,096", "5,120 (more than it has)"):
        assert shown.replace(",", "") in lines[2].replace(",", "")
    assert "6.1.0" in host(state, "list", "-o", "wide").out


def test_one_host_is_shown_with_what_it_is_and_what_is_wrong(state: Path) -> None:
    facts = json.loads(host(state, "info", "kvm-10", "-o", "json").out)
    assert (facts["role"], facts["zone"], facts["cpus"], facts["version"]) == ("primary", "north", 8, "1.2.3")
    memory = {"allocated": 3072, "provisioned": 5120, "used": 1024, "total": 4096, "overProvisioned": True}
    assert facts["memoryMib"] == memory
    assert facts["faults"] == ["kvm-10 is not armed"]
    text = host(state, "info", "kvm-10").out
    assert "Debian GNU/Linux 12 (bookworm)" in text
    assert host(state, "info", "kvm-9").code == 0, "nobody has published figures of it"
    missing = host(state, "info", "kvm-1")
    assert (missing.code, missing.err.count("\n")) == (4, 1)


def test_whether_a_host_is_the_primary_is_an_exit_code(state: Path) -> None:
    asked = host(state, "is-primary", "kvm-10")
    assert (asked.code, asked.out) == (0, "kvm-10 is the primary coordinator\n")
    assert host(state, "is-primary", "kvm-9").code == 1
    assert host(state, "is-primary").code == 1, "this machine is no host of the cluster"


def test_this_machine_is_the_host_that_its_configuration_names(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("host: {name: kvm-10}\nserver: {url: 'https://10.0.0.9:8443'}\n")
    monkeypatch.setenv("OUTLIVE_CONFIG", str(config))
    assert host(state, "is-primary").code == 0


def test_a_fault_is_acknowledged_and_lowers_the_health_no_more(state: Path) -> None:
    def run(*arguments: str) -> Result:
        return outlive(*arguments, "--state-dir", state)

    def taken() -> int:
        document = json.loads(run("status", "-o", "json").out)
        assert document["health"] is None, "no server runs that could say how well the cluster is"
        return sum(one["delta"] for one in document["faults"])

    name = "guard-not-armed.kvm-10"
    assert taken() == 10
    assert run("acknowledge", name).out == f"{name}: acknowledged\n"
    assert taken() == 0
    assert run("acknowledge", name, "--undo").code == 0
    assert taken() == 10
    missing = run("acknowledge", "host-dead.kvm-4")
    assert (missing.code, missing.err.count("\n")) == (4, 1)


FUNCTIONS = """
apiVersion: outlive.dev/v1alpha1
kind: Hypervisor
metadata: {name: kvm-1}
spec: {management: node}
status:
  physicalFunctions: [{name: eth0, vfCount: 2}]
  virtualFunctions:
    - {name: eth0v0, physicalFunction: eth0, pci: "0000:01:10.0", usedBy: vm-1}
    - {name: eth0v1, physicalFunction: eth0, pci: "0000:01:10.2", message: "linkState: Operation not supported"}
"""


def test_virtual_functions_are_shown_and_set(state: Path, tmp_path: Path) -> None:
    (tmp_path / "functions.yaml").write_text(FUNCTIONS)
    done = outlive("apply", "--status", "-f", tmp_path / "functions.yaml", "--state-dir", state)
    assert done.code == 0, done.err
    nothing = host(state, "function", "set", "kvm-1", "eth0v1")
    assert (nothing.code, "no setting is named" in nothing.err) == (2, True)
    strange = host(state, "function", "set", "kvm-1", "eth0v9", "--vlan", "7")
    assert (strange.code, "it has eth0v0, eth0v1" in strange.err) == (4, True)
    for wrong in ("4095", "x"):
        assert host(state, "function", "set", "kvm-1", "eth0v1", "--vlan", wrong).code == 3
    told = host(state, "function", "set", "kvm-1", "eth0v1", "--vlan", "7", "--vlan-qos", "3", "--trust", "on")
    assert (told.code, told.out) == (0, "eth0v1 of kvm-1: vlan 7, vlanQos 3, trust on\n")
    told = host(state, "function", "set", "kvm-1", "eth0v1", "--trust", "default")
    assert told.out == "eth0v1 of kvm-1: vlan 7, vlanQos 3\n"
    shown = json.loads(host(state, "functions", "kvm-1", "-o", "json").out)
    first, second = shown["virtualFunctions"]
    assert (first["usedBy"], second["wanted"]) == ("vm-1", {"vlan": 7, "vlanQos": 3})
    text = host(state, "functions").out
    assert "vlan=7 vlanQos=3" in text
    assert "linkState: Operation not supported" in text
