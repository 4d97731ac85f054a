"""A silent host is fenced by its real BMC: rehearsed, condemned, killed, proven dead; and what refuses."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab.bmc import PASSWORD, USERNAME, Ipmi, Redfish, StateFile
from tests.support.command import outlive, spawned, up
from tests.support.hosts import Host, within

pytestmark = pytest.mark.component("ipmi")
FENCED_S = 60.0


@dataclass
class Cloud:
    """A server, a coordinator, and a host that both have controllers."""

    directory: Path
    coordinator: Host
    host: Host
    system: StateFile
    controller: Ipmi | Redfish

    def get(self, kind: str, name: str) -> dict[str, Any]:
        answer = outlive("get", kind, name, "--state-dir", self.directory, "-o", "json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    def fencing(self, name: str = "kvm-2", **changes: Any) -> None:
        """What the store says of a host's controller."""
        options = {"cipherSuite": "3"} if isinstance(self.controller, Ipmi) else {"insecure": "true"}
        spec = {
            "driver": "ipmi" if isinstance(self.controller, Ipmi) else "redfish",
            "address": self.controller.address,
            "secret": "rack-3",
            "systemUuid": self.controller.system_uuid,
            "options": options,
            "profile": "fast",
            **changes,
        }
        document = self.get("hypervisors", name)
        document["spec"]["fencing"] = spec
        del document["metadata"]["resourceVersion"]
        done = spawned("apply", "-f", "-", "--state-dir", self.directory, stdin=json.dumps(document).encode())
        assert done.code == 0, done.err

    def rehearsed(self, name: str = "kvm-2") -> str:
        return self.get("hypervisors", name)["status"].get("rehearsed", "")

    def is_rehearsed(self) -> bool:
        return self.get("hypervisors", self.host.name)["status"].get("rehearsedSeq", 0) > 0


@pytest.fixture(params=[Ipmi, Redfish], ids=["ipmi", "redfish"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cloud]:
    system = StateFile(tmp_path / "system").create()
    controller = request.param(tmp_path, "controller", str(uuid.uuid4()), system.hook)
    controller.start()
    directory = tmp_path / "state"
    with up(directory) as server:
        key = {"keyFile": str(directory / "cluster-key")}
        hosts = [Host(tmp_path / name, name, server.url, directory / "token") for name in ("kvm-1", "kvm-2")]
        for one, mode in zip(hosts, ("coordinator", "hypervisor"), strict=True):
            one.sections["server"] |= key
            one.sections["host"]["mode"] = mode
            one.configure()
        hosts[1].start().ready()
        secret(directory, "rack-3", PASSWORD)
        assert hosts[1].process is not None
        system.feeds(hosts[1].process.pid)
        made = Cloud(directory, *hosts, system, controller)
        made.fencing()
        yield made  # its coordinator is started by the test, and rehearses at once
        for one in hosts:
            one.close()
    controller.go_on()
    controller.stop()


def test_a_silent_host_is_killed_by_its_controller_and_proven_dead(cloud: Cloud) -> None:
    cloud.coordinator.start().ready()
    assert within(FENCED_S, cloud.is_rehearsed), cloud.rehearsed() + cloud.coordinator.logged()[-3000:]
    assert cloud.rehearsed() == "ok"
    cloud.host.signal(signal.SIGSTOP)
    assert within(FENCED_S, lambda: proof(cloud) != {}), cloud.coordinator.logged()[-3000:]
    found = proof(cloud)
    assert (found["kind"], found["epoch"]) == ("power", 1)
    assert cloud.controller.system_uuid in found["evidence"]
    assert cloud.host.ended() == -signal.SIGKILL, "the controller cut its power"
    assert not cloud.system.is_on
    assert cloud.controller.commands == 1
    assert PASSWORD not in cloud.coordinator.logged() + cloud.coordinator.said()


def secret(directory: Path, name: str, value: str) -> None:
    done = spawned("secret", "set", name, "--username", USERNAME, "--state-dir", directory, stdin=value.encode())
    assert done.code == 0, done.err


def proof(cloud: Cloud) -> dict[str, Any]:
    return cloud.get("memberships", cloud.host.name)["record"].get("proof") or {}


@pytest.mark.parametrize("cloud", [Ipmi], indirect=True, ids=["ipmi"])
def test_what_is_wrong_with_a_controller_is_said_before_it_is_needed(cloud: Cloud) -> None:
    other = str(uuid.uuid4())
    cloud.controller.rewire(other, cloud.system.hook)
    secret(cloud.directory, "old", "not-this-one")
    cloud.coordinator.start().ready()
    cloud.fencing("kvm-1", secret="old")  # its own controller, as soon as it is known
    refused = "refuses the password of user admin"
    assert within(FENCED_S, lambda: refused in cloud.rehearsed("kvm-1")), cloud.rehearsed("kvm-1")
    assert within(FENCED_S, lambda: f"speaks of system {other}" in cloud.rehearsed()), cloud.rehearsed()
    cloud.host.signal(signal.SIGSTOP)
    assert within(FENCED_S, lambda: any(f"speaks of system {other}" in one for one in faults(cloud))), faults(cloud)
    assert within(FENCED_S, lambda: any(one.startswith("power-not-rehearsed") for one in faults(cloud))), faults(cloud)
    assert proof(cloud) == {}
    assert cloud.controller.commands == 0, "a controller of another machine gets no command"


def faults(cloud: Cloud) -> list[str]:
    answer = outlive("get", "faults", "--state-dir", cloud.directory, "-o", "json")
    items = json.loads(answer.out)["items"]
    return [f"{one['code']}: {one['message']}" for one in items if not one.get("ended")]
