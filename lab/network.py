"""The laboratory on OVN: networks of every kind, guests on them, who talks to them, and how long they were not heard.

Guests ask for their address by DHCP and echo what is sent to TCP port 7. ``Pings`` and ``Stream`` run on a chassis that
no guest is on, on localnet on a machine of the physical network.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from lab import guest
from lab.cluster import Lab, document
from lab.hosts import Host
from lab.ovn import PHYSICAL, Workload
from lab.processes import until
from outlive.network import ISOLATED_KEY

MTU: Final = 1342
NETWORKS: Final[Mapping[str, dict[str, Any]]] = {
    "layer2": {
        "type": "layer2",
        "subnets": [
            {"cidr": "192.168.40.0/24", "gateway": "192.168.40.1", "excluded": ["192.168.40.192/26"]},
            {"cidr": "fd00:40::/64"},
        ],
        "mtu": MTU,
    },
    "localnet": {
        "type": "localnet",
        "subnets": [{"cidr": "192.168.50.0/24", "excluded": ["192.168.50.192/26"]}],
        "physicalNetwork": PHYSICAL,
        "dhcp": {"enabled": True},
        "mtu": MTU,
    },
    "routed": {"type": "routed", "subnets": [{"cidr": "10.44.0.0/16"}], "mtu": MTU},
}
"""Of each type the network of that name."""
PEERS: Final = {
    "layer2": ("0a:58:00:00:01:01", ("192.168.40.200/24", "fd00:40::ffff/64"), ""),
    "localnet": ("0a:58:00:00:01:02", ("192.168.50.200/24",), ""),
    "routed": ("0a:58:00:00:01:03", ("10.99.0.10/24",), "10.99.0.1"),
}
"""Network → MAC, addresses and gateway of who talks to its guests."""
SILENCE_LIMIT_S: Final = 120.0
COUNTING: Final = "net=dhcp count_ms=20 tick_ms=5 write_ms=500"
"""How guests count whose pauses are measured."""
ECHO: Final = (
    "import socket,sys,time\n"
    "s=socket.create_connection((sys.argv[1],7),10)\n"
    "s.settimeout(60)\n"
    "n=0\n"
    "while True:\n"
    "    s.sendall(b'%08d'%n)\n"
    "    got=b''\n"
    "    while len(got)<8:\n"
    "        part=s.recv(8-len(got))\n"
    "        if not part: sys.exit('closed')\n"
    "        got+=part\n"
    "    if int(got)!=n: sys.exit('wrong')\n"
    "    print(time.time(),flush=True)\n"
    "    n+=1\n"
    "    time.sleep(0.01)\n"
)


class Silence(NamedTuple):
    """What somebody heard of a guest."""

    sent: int
    lost: int
    doubled: int
    longest_ms: float
    """Between two answers."""


class Pings:
    """Pings every 10 ms until ``stop``."""

    def __init__(self, source: Workload, address: str, every_s: float = 0.01) -> None:
        words = ("ping", "-n", "-D", f"-i{every_s:g}", "-W1", address)
        self._process = subprocess.Popen(source.command(*words), stdout=subprocess.PIPE, text=True)

    def stop(self) -> Silence:
        """End them; what was heard."""
        self._process.send_signal(signal.SIGINT)
        said = self._process.communicate(timeout=10)[0]
        heard: list[float] = []
        numbers: set[str] = set()
        doubled = 0
        for at, number in re.findall(r"^\[([\d.]+)\] \d+ bytes.*icmp_seq=(\d+) ", said, re.M):
            doubled += number in numbers
            if number not in numbers:
                numbers.add(number)
                heard.append(float(at))
        found = re.search(r"(\d+) packets transmitted", said)
        sent = int(found[1]) if found is not None else 0
        longest = max((after - before for before, after in pairwise(heard)), default=float("inf"))
        return Silence(sent, sent - len(heard), doubled, 1000 * longest)


class Stream:
    """A TCP connection on which a few bytes go there and back every 10 ms."""

    def __init__(self, source: Workload, address: str) -> None:
        command = source.command("python3", "-c", ECHO, address)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._times: list[float] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until(lambda: len(self._times) > 5 or self._process.poll() is not None, "a stream is echoed", 20)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._times.append(float(line))

    def stop(self) -> tuple[str, float]:
        """End it; why it ended before (empty: it did not), and its longest stall in ms."""
        before = len(self._times)
        goes_on = self._process.poll() is None
        if goes_on:
            until(lambda: len(self._times) > before or self._process.poll() is not None, "a stream goes on", 60)
            goes_on = self._process.poll() is None
            self._process.kill()
        said = self._process.communicate(timeout=10)[1].strip().splitlines()
        self._reader.join(10)
        stalls = (after - at for at, after in pairwise(self._times))
        return "" if goes_on else (said[-1] if said else "it ended"), 1000 * max(stalls, default=float("inf"))


class Pause:
    """How long a guest did not count, as its console shows it, until ``stop``."""

    def __init__(self, console: Path) -> None:
        self._console = console
        self._over = threading.Event()
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        size, at = self._console.stat().st_size, time.monotonic()
        while not self._over.wait(0.001):
            now = self._console.stat().st_size
            if now > size:
                moment = time.monotonic()
                self._longest_s, size, at = max(self._longest_s, moment - at), now, moment

    def stop(self) -> float:
        """End it; the longest pause in ms."""
        self._over.set()
        self._thread.join()
        return 1000 * self._longest_s


class NetworkLab(Lab):
    """A laboratory whose hosts are chassis; guests are made one by one."""

    def __init__(
        self,
        state: Path,
        *,
        programs: Path | None = None,
        guests_count: int = 0,
        homes: Sequence[str] = (),
        on_ceph: bool = False,
    ) -> None:
        """``guests_count``: how many there are besides, without a network."""
        super().__init__(
            state, guests_count=guests_count, homes=homes, on_ceph=on_ceph, on_ovn=True, ovn_programs=programs
        )
        self._peers: dict[str, Workload] = {}

    def make_networks(self) -> None:
        """One of each type."""
        self._apply([document("VirtualNetwork", name, spec) for name, spec in NETWORKS.items()])
        until(self._are_programmed, "all networks are programmed", 30)

    def _are_programmed(self) -> bool:
        found = self.objects("virtualnetworks")
        conditions = [one.get("status", {}).get("conditions", []) for one in found]
        return len(found) == len(NETWORKS) and all(
            any(each["type"] == "Programmed" and each["status"] == "True" for each in of) for of in conditions
        )

    def make_guest(
        self,
        name: str,
        network: str,
        host: str,
        *,
        port: bool = True,
        extra: str = COUNTING,
        addresses: Sequence[str] = (),
    ) -> None:
        """A guest with one interface, wanted on that host. ``port``: the controller programs it; else nobody does.

        ``addresses``: chosen for it, without masks; of IPv6 the guest is told its own.
        """
        extra += "".join(f" ip6={one}/64" for one in addresses if ":" in one)
        mac, interface = guest_mac(name), guest_interface(name)
        element = self.make_guest_disk(name)
        self.console(name).parent.mkdir(exist_ok=True)
        path, interfaces = self.state / "disks" / f"{name}.raw", guest.interface(mac, interface)
        xml = guest.definition(name, path, self.console(name), extra=extra, element=element, interfaces=interfaces)
        made = document("VirtualMachine", name, {"definition": xml})
        made["metadata"]["labels"] = {"outlive.dev/host": host}
        made["status"] = {"assigned": {"hypervisor": host}, "home": host}
        spec: dict[str, Any] = {"vm": name, "network": network, "mac": mac}
        ports = [document("VirtualMachinePort", f"{name}.0", {**spec, "addresses": addresses} if addresses else spec)]
        self._apply([*(ports if port else ()), made], "--status")

    def await_guest(self, name: str, after: int = 0, limit_s: float = 120.0) -> str:
        """The address that the guest was given, once it has it. ``after``: bytes of the console that are of before."""

        def found() -> str:
            if not self.console(name).exists():
                return ""
            said = self.console(name).read_bytes()[after:].decode(errors="replace")
            address = re.search(r"^address (\S+) ", said, re.M)
            return address[1] if address is not None else ""

        address: str = until(found, f"{name} is given an address", limit_s)
        return address

    def peer(self, network: str) -> Workload:
        """Who talks to the guests of a network."""
        assert self.ovn is not None
        if network not in self._peers:
            mac, addresses, gateway = PEERS[network]
            if network == "localnet":
                self._peers[network] = self.ovn.outside("peer", mac, *addresses)
                return self._peers[network]
            switch = "layer2_ovn_layer2_switch" if network == "layer2" else "peers"
            if network == "routed":
                self._make_routed_peers(gateway)
            name = f"peer-{network}"
            text = " ".join((mac, *(one.partition("/")[0] for one in addresses)))
            self.ovn.nbctl("--may-exist", "lsp-add", switch, name, "--", "lsp-set-addresses", name, text)
            self._peers[network] = self.ovn.chassis[-1].plug(name, mac, *addresses, gateway=gateway)
        return self._peers[network]

    def _make_routed_peers(self, gateway: str) -> None:
        assert self.ovn is not None
        port = ("--may-exist", "lrp-add", "ovn_cluster_router", "rtos-peers", "0a:58:0a:63:00:01", f"{gateway}/24")
        options = ("type=router", "addresses=router", "options:router-port=rtos-peers")
        self.ovn.nbctl(
            *("--may-exist", "ls-add", "peers", "--", *port, "--", "--may-exist", "lsp-add", "peers", "stor-peers"),
            *("--", "set", "logical_switch_port", "stor-peers", *options),
        )

    def warm_up(self, network: str, address: str) -> None:
        """Until a ping is answered: the first one across a tunnel is usually lost."""
        until(lambda: self.peer(network).reaches(address), f"{address} answers", 30)

    def vm(self, name: str) -> dict[str, Any]:
        """The VM's document."""
        found: dict[str, Any] = json.loads(self.outlive("get", "vm", name, "-o", "json"))
        return found

    def port(self, name: str) -> dict[str, Any]:
        """The document of the VM's port."""
        found: dict[str, Any] = json.loads(self.outlive("get", "virtualmachineports", f"{name}.0", "-o", "json"))
        return found

    def begin_moves(self, names: Collection[str], target: str) -> None:
        """Have guests move to a host at once. It returns when all are under way and the first one is sent, or was."""
        assert self.ovn is not None
        chassis = next(one for one in self.ovn.chassis if one.name == target)
        chassis.pause()  # meanwhile nothing is sent: the target is not prepared
        try:
            for name in names:
                self.outlive("vm", "move", name, "--to", target, "--force-live")
            until(lambda: all(target in self.copies(name) for name in names), "the target waits for all", 60, 0.02)
        finally:
            chassis.resume()

        def is_sent() -> bool:
            found = [one["status"].get("migration") for one in self.objects("virtualmachines")]
            waiting = [one for one in found if one and one.get("phase", "requested") in ("requested", "target-ready")]
            return len(waiting) < len(names)

        until(is_sent, "a guest is sent", 20, 0.02)

    def host_of(self, name: str) -> str:
        """Where the VM is assigned."""
        return str(self.vm(name)["status"]["assigned"]["hypervisor"])

    def move(self, name: str, target: str, limit_s: float = 90.0) -> str:
        """Move the guest while it runs; why it was aborted, empty: it is there."""
        self.outlive("vm", "move", name, "--to", target, "--force-live")
        return self.await_move(name, target, limit_s)

    def await_move(self, name: str, target: str, limit_s: float = 90.0) -> str:
        """Wait for the end of a move that was asked for."""

        def ended() -> tuple[str] | None:
            status = self.vm(name)["status"]
            move = status.get("migration")
            if move is not None and move.get("phase") == "aborted":
                return (str(move.get("reason", "aborted")),)
            runs = any(one["hypervisor"] == target and one.get("seen") == "running" for one in status["holders"])
            return ("",) if move is None and runs and status["assigned"]["hypervisor"] == target else None

        found: tuple[str] = until(ended, f"{name} has moved to {target}", limit_s, 0.1)
        return found[0]

    def copies(self, name: str) -> list[str]:
        """Hosts on which a process of the guest exists."""
        return [host.name for host in self.hosts if host.on and self._runs(host, name)]

    def _runs(self, host: Host, name: str) -> bool:
        for pid, _ in host.processes():
            with contextlib.suppress(OSError):
                if f"guest={name}," in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
                    return True
        return False

    def rows_of(self, name: str) -> set[str]:
        """Names of the logical ports, and prefixes of the routes, that OVN has for the guest."""
        assert self.ovn is not None
        found: set[str] = set()
        for table, column in (("Logical_Switch_Port", "name"), ("Logical_Router_Static_Route", "ip_prefix")):
            words = ("--bare", f"--columns={column}", "find", table, f'external_ids:"k8s.ovn.org/vm"={name}')
            found.update(self.ovn.nbctl(*words).split())
        return found

    def isolated_rows(self, name: str) -> set[str]:
        """Names of the guest's logical ports that a host is isolated from: they stay until it is let in."""
        assert self.ovn is not None
        ovn = self.ovn
        ports = self.rows_of(name) & set(ovn.nbctl("--bare", "--columns=name", "list", "Logical_Switch_Port").split())
        words = ("--if-exists", "get", "Logical_Switch_Port")
        return {one for one in ports if ISOLATED_KEY in ovn.nbctl(*words, one, "external_ids")}


def guest_interface(name: str) -> str:
    """Id of a guest's interface."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.interface"))


def guest_mac(name: str) -> str:
    """MAC address of a guest's interface."""
    digits = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.mac").hex
    return f"0a:58:{digits[:2]}:{digits[2:4]}:{digits[4:6]}:{digits[6:8]}"


def started(state: Path, *, programs: Path | None = None) -> Iterator[NetworkLab]:
    """A laboratory with its networks, stopped in the end."""
    lab = NetworkLab(state, programs=programs)
    try:
        for _ in lab.start():
            pass
        lab.make_networks()
        yield lab
    finally:
        lab.stop()
