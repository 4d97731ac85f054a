"""One host with libvirt and its daemon, and a store: what tests and measurements of the daemon need."""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from lab.hosts import NET, PROJECT, STORE, Host, Switch
from lab.libvirtd import ALLOWED, Libvirtd
from lab.processes import Process, run, until
from outlive.base import write_whole

PORT = 8080
NAME = "host-1"
TICKS = os.sysconf("SC_CLK_TCK")


class Single:
    """See the module. ``start`` and ``stop`` are for one process."""

    def __init__(self, state: Path, **sections: dict[str, Any]) -> None:
        self.state = state
        self._sections = sections
        """More for the daemon's configuration."""
        self.switch = Switch(state)
        self.host = Host(self.switch, NAME, 11)
        self.libvirtd = Libvirtd(self.host)
        self.url = f"http://{NET}.{STORE}:{PORT}"
        self._server = Process(state / "server.pid")

    def start(self) -> None:
        """Everything, until the host is a member."""
        self.switch.start()
        self.switch.plug("store", STORE)
        program = str(Path(sys.executable).with_name("outlive"))
        words = ["up", "--listen", f"{NET}.{STORE}:{PORT}", "--insecure", "--state-dir", str(self.state / "store")]
        self._server.start(self.switch.inside("store", program, *words), self.state / "server.log")
        until(lambda: "ready on" in (self.state / "server.log").read_text(), "outlive up is ready", 60, 0.1)
        self.libvirtd.make()
        etc = self.host.folder / "etc/outlive"
        etc.mkdir(exist_ok=True)
        write_whole(etc / "node.token", (self.state / "store/token").read_bytes())
        settings: dict[str, dict[str, Any]] = {
            "server": {"url": self.url, "insecure": True},
            "host": {"name": NAME, "addresses": {"cluster": self.host.address}},
            "libvirt": {
                "uri": "qemu:///system",
                "kind": "qemu",
                "slice": "/sys/fs/cgroup/machine",
                "user": "root",
                **ALLOWED,
            },
            "log": {"form": "json", "file": "/var/log/node.log"},
        }
        for name, more in self._sections.items():
            settings[name] = {**settings.get(name, {}), **more}
        (etc / "node.yaml").write_text(json.dumps(settings))
        self.host.add_service("40-node", [program, "node"])
        self.libvirtd.start()
        until(lambda: self.events("node.ready"), f"{NAME} is a member", 60, 0.1)

    def stop(self) -> None:
        """Everything."""
        self.host.freeze(False)
        self.host.power_off()
        self._server.stop()
        self.switch.stop()

    def add_vms(self, count: int, memory_mib: int = 16) -> None:
        """VMs that are assigned to the host: machines without a disk, which rest once their firmware found none."""
        token = self.state / "store/token"
        words = [sys.executable, "-m", "lab.single", self.url, str(token), str(count), str(memory_mib)]
        run(*self.switch.inside("store", "env", f"PYTHONPATH={PROJECT}", *words), limit_s=120)

    def outlive(self, *words: str) -> Any:
        """What a command prints as JSON."""
        program = str(Path(sys.executable).with_name("outlive"))
        token = f"@{self.state / 'store/token'}"
        env = ["env", f"OUTLIVE_SERVER={self.url}", f"OUTLIVE_TOKEN={token}"]
        said = run(*self.switch.inside("store", *env, program, *words, "--insecure", "-o", "json"))
        return json.loads(said)

    def record(self) -> dict[str, Any]:
        """The membership of the host."""
        record: dict[str, Any] = self.outlive("get", "memberships", NAME)["record"]
        return record

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name in the daemon's log."""
        log = self.host.folder / "var/log/node.log"
        lines = log.read_text().splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [one for one in found if one["event"] == name]

    @property
    def pid(self) -> int:
        """Of the daemon, as this machine numbers it."""
        return self.host.services()["node"]

    def memory_mib(self) -> float:
        """Of the daemon, resident."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024

    def processor_s(self) -> float:
        """What the daemon has used so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS


def _definition(name: str, memory_mib: int) -> str:
    return f"""<domain type='qemu'><name>{name}</name><uuid>{uuid.uuid5(uuid.NAMESPACE_DNS, name)}</uuid>
<memory unit='MiB'>{memory_mib}</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type><bios useserial='yes'/></os>
<features><acpi/></features><devices><graphics type='vnc'/></devices></domain>"""


async def _fill(url: str, token: str, count: int, memory_mib: int) -> None:
    from outlive.base import SystemClock, system_random
    from outlive.resources import (
        HOST_LABEL,
        Assigned,
        ObjectMeta,
        VirtualMachine,
        VirtualMachineSpec,
        VirtualMachineStatus,
    )
    from outlive.store import HttpStore

    store = HttpStore(url, token, clock=SystemClock(), random=system_random(), insecure=True)
    for number in range(1, count + 1):
        name = f"vm-{number}"
        vm = VirtualMachine(
            metadata=ObjectMeta(name=name, labels={HOST_LABEL: NAME}),
            spec=VirtualMachineSpec(definition=_definition(name, memory_mib), power_state="running"),
            status=VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor=NAME), home=NAME),
        )
        written = await store.create(vm)
        if written.status.assigned is None:
            import msgspec

            await store.replace_status(msgspec.structs.replace(written, status=vm.status))
    await store.close()


if __name__ == "__main__":
    import asyncio

    asyncio.run(_fill(sys.argv[1], Path(sys.argv[2]).read_text().strip(), int(sys.argv[3]), int(sys.argv[4])))
