"""OVN on one machine: its databases, northd, and chassis whose packets go through userspace.

No kernel module is needed but ``tun`` and ``veth``. A chassis has a network namespace of its own, or sits in that of a
laboratory host (``lab.hosts``), where its three programs are services and its sockets lie where libvirt looks for them.
What is plugged into a chassis is a namespace with one interface. Everything hangs on one ``Switch``, so that any cable
can be cut, and on one prefix, so that several run side by side.

``bin`` is a folder with programs of another version, and its schemas (``scripts/ovn-programs``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from lab.hosts import Host, Switch
from lab.processes import LabError, Process, run, until

NET: Final = "10.87.0"
"""The network of tunnels and databases, a /24."""
CENTRAL: Final = 1
"""The number of the databases' address; chassis have 11 and on."""
PORTS: Final = {"nb": 6641, "sb": 6642}
RAFT_PORT: Final = 6643
MTU: Final = 1442
"""What is left of 1500 bytes inside of a tunnel."""
PHYSICAL: Final = "physnet"
"""The name of the physical network, for ``network_name`` of a localnet port."""
WIRE: Final = "br1"
"""The bridge of the switch that is the physical network."""
SCHEMAS: Final = {
    "ovn-nb": "/usr/share/ovn/ovn-nb.ovsschema",
    "ovn-sb": "/usr/share/ovn/ovn-sb.ovsschema",
    "vswitch": "/usr/share/openvswitch/vswitch.ovsschema",
}
HOST_FOLDER: Final = "/run/openvswitch"
"""Where a host's chassis has its sockets, as the host sees it."""
QUIET: Final = "-vconsole:warn -vsyslog:off -vfile:off"
OFFLOADS: Final = ("tx", "off", "rx", "off", "gso", "off", "tso", "off", "gro", "off")
PROBE_MS: Final = 5000


class Programs:
    """Where the programs and schemas come from."""

    def __init__(self, bin: Path | None = None) -> None:
        self.bin = bin

    def env(self, folder: str) -> dict[str, str]:
        """The environment of a program whose files lie in ``folder``."""
        path = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
        names = ("OVS_RUNDIR", "OVS_DBDIR", "OVS_LOGDIR", "OVN_RUNDIR", "OVN_DBDIR", "OVN_LOGDIR")
        return {"PATH": f"{self.bin}:{path}" if self.bin else path, **dict.fromkeys(names, folder)}

    def schema(self, name: str) -> str:
        """The file of a schema."""
        return str(self.bin / f"{name}.ovsschema") if self.bin else SCHEMAS[name]

    def run(self, folder: Path, *command: str, limit_s: float = 30.0) -> str:
        """What one of the programs prints."""
        return run(
            "env", *(f"{name}={value}" for name, value in self.env(str(folder)).items()), *command, limit_s=limit_s
        )


class Database:
    """One server of a database; the servers of a cluster have numbers from 1 on."""

    def __init__(self, ovn: Ovn, kind: Literal["nb", "sb"], number: int, count: int) -> None:
        self.kind = kind
        self.number = number
        self.name = kind if count == 1 else f"{kind}-{number}"
        self.file = ovn.state / f"{self.name}.db"
        self.socket = ovn.state / f"{self.name}.sock"
        self.process = Process(ovn.state / f"{self.name}.pid")
        self._ovn = ovn
        self._count = count

    @property
    def remote(self) -> str:
        """For programs of this machine, in any network namespace."""
        return f"unix:{self.socket}"

    def start(self) -> None:
        """Start it, with what it had; returns when it takes connections."""
        ovn = self._ovn
        if not self.file.exists():
            self._make_file()
        self.socket.unlink(missing_ok=True)
        port = PORTS[self.kind] + 10 * (self.number - 1)
        words = ["ovsdb-server", f"--unixctl={ovn.state}/{self.name}.ctl", f"--remote=punix:{self.socket}"]
        words += [f"--remote=ptcp:{port}:{NET}.{CENTRAL}", *QUIET.split(), str(self.file)]
        command = ovn.switch.inside("central", *words)
        self.process.start(command, ovn.state / f"{self.name}.log", ovn.programs.env(str(ovn.state)))
        until(self._listens, f"the database {self.name} listens; see {ovn.state}/{self.name}.log", 20)

    def stop(self) -> None:
        """End it as at a restart of its service."""
        self.process.stop()

    def kill(self) -> None:
        """End it as a power loss does."""
        self.process.kill()

    def pause(self) -> None:
        """It keeps its connections and answers nothing."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        self.process.signal(signal.SIGCONT)

    def appctl(self, *words: str) -> str:
        """What its control socket answers."""
        return self._ovn.programs.run(self._ovn.state, "ovs-appctl", "-t", f"{self._ovn.state}/{self.name}.ctl", *words)

    @property
    def leads(self) -> bool:
        """Whether it is the leader of its cluster; that of one server always is."""
        if self._count == 1:
            return True
        with contextlib.suppress(LabError):
            return "Role: leader" in self.appctl("cluster/status", self._schema_name())
        return False

    def _schema_name(self) -> str:
        return "OVN_Northbound" if self.kind == "nb" else "OVN_Southbound"

    def _make_file(self) -> None:
        tool, folder, schema = self._ovn.programs.run, self._ovn.state, self._ovn.programs.schema(f"ovn-{self.kind}")
        own = f"tcp:127.0.0.1:{RAFT_PORT + 10 * self.number}"
        if self._count == 1:
            tool(folder, "ovsdb-tool", "create", str(self.file), schema)
        elif self.number == 1:
            tool(folder, "ovsdb-tool", "create-cluster", str(self.file), schema, own)
        else:
            first = f"tcp:127.0.0.1:{RAFT_PORT + 10}"
            tool(folder, "ovsdb-tool", "join-cluster", str(self.file), self._schema_name(), own, first)

    def _listens(self) -> bool:
        if not self.process.pid:
            raise LabError(f"the database {self.name} ended: see {self._ovn.state}/{self.name}.log")
        return self.socket.exists()


class Workload:
    """A namespace with one interface, behind a chassis or on the physical network."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def command(self, *words: str) -> list[str]:
        """A command that runs in it."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def run(self, *words: str, limit_s: float = 30.0) -> str:
        """What a command in it prints."""
        return run(*self.command(*words), limit_s=limit_s)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in it; the caller ends it."""
        return subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def reaches(self, address: str, limit_s: int = 1) -> bool:
        """Whether one ping is answered."""
        with contextlib.suppress(LabError):
            return bool(self.run("ping", "-c", "1", "-W", str(limit_s), address))
        return False


class Chassis:
    """One chassis: a switch in userspace and ovn-controller."""

    def __init__(self, ovn: Ovn, name: str, number: int, host: Host | None = None, physical: bool = False) -> None:
        self.name = name
        self.host = host
        self.encap_ip = f"{NET}.{10 + number}"
        self.namespace = f"{host.switch.prefix}-{host.name}" if host else f"{ovn.switch.prefix}-{name}"
        self.workloads: dict[str, Workload] = {}
        """By the id of their interface."""
        self._ovn = ovn
        self._physical = physical
        self._made = ovn.state / name
        """Its folder where it is no host's."""

    # --- start and stop

    def start(self) -> None:
        """Start it, or let its host start it at each boot; ``Ovn.start`` waits until it has registered."""
        self._connect()
        if self.host is not None:
            env = self._ovn.programs.env(HOST_FOLDER)
            for name, command in self._commands(HOST_FOLDER).items():
                self.host.add_service(name, command, env, again_s=0.2)
                if self.host.on:
                    self.host.ask(f"start {name}")
            return
        self._made.mkdir(parents=True, exist_ok=True)
        env = self._ovn.programs.env(str(self._made))
        for name, command in self._commands(str(self._made)).items():
            self._process(name).start(self.inside(*command), self._made / f"{name[3:]}.log", env)

    def kill(self) -> None:
        """Cut its power: its row and its bindings stay in the southbound database."""
        if self.host is not None:
            self.host.power_off()
            return
        for name in reversed(SERVICES):
            self._process(name).kill()
        for path in ("conf.db", ".conf.db.~lock~", "db.sock"):
            (self._made / path).unlink(missing_ok=True)

    def leave(self) -> None:
        """End ovn-controller so that it removes its row and its bindings, as at an orderly shutdown."""
        sockets = [str(path) for path in self._folder.glob("ovn-controller.*.ctl")]
        for path in sockets:
            self._ovn.programs.run(self._folder, "ovs-appctl", "-t", path, "exit", limit_s=10)

    def pause(self, service: str = "14-ovn-controller") -> None:
        """Let one of its programs (``SERVICES``) stand still."""
        self._signal(service, signal.SIGSTOP)

    def resume(self, service: str = "14-ovn-controller") -> None:
        """Let it go on."""
        self._signal(service, signal.SIGCONT)

    def cut(self) -> None:
        """Take it off all networks but its host's own, both ways; ``Ovn.heal`` takes that back."""
        others = [one.name for one in self._ovn.chassis if one is not self]
        mine, theirs = (self.name, f"p-{self.name}"), ["central", *others, *(f"p-{name}" for name in others)]
        theirs += [f"o-{name}" for name in self._ovn.outsiders]
        self._ovn.switch.cut(*(pair for one in mine for other in theirs for pair in ((one, other), (other, one))))

    # --- what is on it

    @property
    def remote(self) -> str:
        """Its own database, for programs of this machine."""
        return f"unix:{self._folder}/db.sock"

    def vsctl(self, *words: str) -> str:
        """What ``ovs-vsctl`` prints."""
        return self._ovn.programs.run(self._folder, "ovs-vsctl", f"--db={self.remote}", "--timeout=15", *words)

    def inside(self, *command: str) -> list[str]:
        """A command that runs in its network namespace."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *command]

    def plug(self, port: str, mac: str, *addresses: str, gateway: str = "", mtu: int = MTU) -> Workload:
        """Plug a workload in, as the interface ``port``; addresses with mask, none: it may ask DHCP."""
        name = _interface(port)
        space = self._ovn.switch.make_namespace(f"{self.name}-{name}")
        words = ("type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "-n", self.namespace, "link", "add", name, *words)
        run("ip", "-n", self.namespace, "link", "set", name, "up")
        no_offloads(self.namespace, name)
        self.vsctl("add-port", "br-int", name, "--", "set", "interface", name, f"external_ids:iface-id={port}")
        workload = self.workloads[port] = set_up(space, mac, addresses, gateway, mtu)
        return workload

    def unplug(self, port: str) -> None:
        """Take it away again, with its namespace."""
        name = _interface(port)
        self.vsctl("--if-exists", "del-port", "br-int", name)
        workload = self.workloads.pop(port, None)
        if workload is not None:
            run("ip", "netns", "del", workload.namespace)
            with contextlib.suppress(LabError):  # it goes with its other end, a little later
                run("ip", "-n", self.namespace, "link", "del", name)

    # --- below

    @property
    def _folder(self) -> Path:
        """Of its sockets, as this machine sees it."""
        return Path(f"/proc/{self.host.pid}/root{HOST_FOLDER}") if self.host else self._made

    def _process(self, service: str) -> Process:
        return Process(self._made / f"{service}.pid")

    def _signal(self, service: str, number: signal.Signals) -> None:
        if self.host is None:
            self._process(service).signal(number)
        elif pid := self.host.services().get(service[3:], 0):
            os.kill(pid, number)

    def _connect(self) -> None:
        """Lay its cables: that of tunnels, and that of the physical network."""
        if self.host is None:
            self._ovn.switch.make_namespace(self.name)
        else:
            self.host.make()
        cables = [(self.name, "ovn0", "br0"), (f"p-{self.name}", "phy0", WIRE)][: 2 if self._physical else 1]
        for name, interface, bridge in cables:
            if _has_link(self.namespace, interface):
                continue
            self._ovn.switch.connect(name, self.namespace, interface, bridge)
            run("ip", "-n", self.namespace, "link", "set", interface, "up")
            no_offloads(self._ovn.switch.name, name)
            no_offloads(self.namespace, interface)

    def _commands(self, folder: str) -> dict[str, list[str]]:
        """Its programs, by the names of their services; each waits for the one before."""
        facts = {
            "system-id": self.name,
            "hostname": self.name,
            "ovn-remote": f"tcp:{NET}.{CENTRAL}:{PORTS['sb']}",
            "ovn-remote-probe-interval": str(PROBE_MS),
            "ovn-encap-type": "geneve",
            "ovn-encap-ip": self.encap_ip,
            "ovn-bridge-datapath-type": "netdev",
            "ovn-monitor-all": "true",
        }
        bridges = (
            _bridge("br-phy", "ovn0")
            # a machine has the same MAC after a boot; other chassis remember for minutes which one it had
            + f" -- set bridge br-phy other-config:hwaddr='\"0a:57:00:00:00:{self.encap_ip.rpartition('.')[2]:0>2}\"'"
            + " -- --may-exist add-br br-int -- set bridge br-int datapath_type=netdev fail-mode=secure"
        )
        if self._physical:
            facts["ovn-bridge-mappings"] = f"{PHYSICAL}:br-ex"
            bridges += " -- " + _bridge("br-ex", "phy0")
        ids = " ".join(f"external_ids:{name}={shlex.quote(value)}" for name, value in facts.items())
        vsctl = f"ovs-vsctl --db=unix:{folder}/db.sock --no-wait"
        create = (
            f"mkdir -p {folder}; [ -s conf.db ] || ovsdb-tool create conf.db {self._ovn.programs.schema('vswitch')}"
        )
        address = f"until ip link set br-phy up; do sleep 0.02; done; ip addr replace {self.encap_ip}/24 dev br-phy"
        server = f"exec ovsdb-server --unixctl={folder}/ovsdb.ctl --remote=punix:{folder}/db.sock {QUIET} conf.db"
        scripts = (
            f"mkdir -p {folder}; cd {folder}; {create}; {server}",
            f"until {vsctl} init 2>/dev/null; do sleep 0.02; done; {vsctl} set open . {ids} -- {bridges}; "
            f"({address}) 2>/dev/null & exec ovs-vswitchd unix:{folder}/db.sock --unixctl={folder}/vs.ctl {QUIET}",
            f"until ip addr show br-phy 2>/dev/null | grep -q {self.encap_ip}; do sleep 0.02; done; "
            f"exec ovn-controller unix:{folder}/db.sock {QUIET}",
        )
        return {name: ["sh", "-c", script] for name, script in zip(SERVICES, scripts, strict=True)}


SERVICES: Final = ("12-ovsdb", "13-vswitchd", "14-ovn-controller")
"""The programs of a chassis in the order of their start, before libvirtd."""


class Ovn:
    """The whole: databases, northd, chassis. ``start`` may be called again after a chassis was added."""

    def __init__(
        self,
        state: Path,
        chassis: int = 2,
        *,
        hosts: Sequence[Host] = (),
        bin: Path | None = None,
        nb_servers: int = 1,
        physical: bool = False,
    ) -> None:
        self.state = state.resolve()
        self.programs = Programs(bin)
        self.switch = Switch(self.state, NET)
        self.northbound = [Database(self, "nb", number, nb_servers) for number in range(1, nb_servers + 1)]
        self.southbound = Database(self, "sb", 1, 1)
        self.northd = Process(self.state / "northd.pid")
        self.chassis = [Chassis(self, host.name, number, host, physical) for number, host in enumerate(hosts, 1)]
        """First those that are hosts, by the host's name; then ``ch-N`` with namespaces of their own."""
        for number in range(len(hosts) + 1, len(hosts) + chassis + 1):
            self.chassis.append(Chassis(self, f"ch-{number}", number, None, physical))
        self.outsiders: list[str] = []
        """Machines on the physical network."""
        self._physical = physical

    @property
    def nb_remote(self) -> str:
        """The connection string of the northbound database, for programs of this machine."""
        return ",".join(one.remote for one in self.northbound)

    @property
    def sb_remote(self) -> str:
        """That of the southbound database."""
        return self.southbound.remote

    # --- start and stop

    def start(self) -> Self:
        """Start what does not run, and wait until every chassis has registered; without power none does."""
        self.switch.start()
        self.switch.plug("central", CENTRAL)
        if self._physical and not _has_link(self.switch.name, WIRE):
            run("ip", "-n", self.switch.name, "link", "add", WIRE, "type", "bridge", "forward_delay", "0")
            run("ip", "-n", self.switch.name, "link", "set", WIRE, "up")
        for database in (*self.northbound, self.southbound):
            if not database.process.pid:
                database.start()
        self.nbctl("init")
        self.sbctl("init")
        self.start_northd()
        for chassis in self.chassis:
            chassis.start()
        expected = {one.name for one in self.chassis if one.host is None or one.host.on}
        until(lambda: self.registered() >= expected, f"every chassis of {self.state} registers", 30)
        return self

    def start_northd(self) -> None:
        """Start northd, unless it runs."""
        words = ["ovn-northd", f"--unixctl={self.state}/northd.ctl", f"--ovnnb-db={self.nb_remote}"]
        words += [f"--ovnsb-db={self.sb_remote}", *QUIET.split()]
        env = self.programs.env(str(self.state))
        self.northd.start(self.switch.inside("central", *words), self.state / "northd.log", env)

    def stop(self) -> None:
        """End everything of it and remove its namespaces; databases and logs stay."""
        for chassis in self.chassis:
            if chassis.host is None:
                chassis.kill()
        self.northd.stop()
        for database in (*self.northbound, self.southbound):
            database.kill()
        self.switch.stop()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what it says

    def nbctl(self, *words: str) -> str:
        """What ``ovn-nbctl`` prints."""
        return self.programs.run(self.state, "ovn-nbctl", f"--db={self.nb_remote}", "--timeout=20", *words)

    def sbctl(self, *words: str) -> str:
        """What ``ovn-sbctl`` prints."""
        return self.programs.run(self.state, "ovn-sbctl", f"--db={self.sb_remote}", "--timeout=20", *words)

    def trace(self, *words: str) -> str:
        """What ``ovn-trace`` prints."""
        return self.programs.run(self.state, "ovn-trace", f"--db={self.sb_remote}", *words)

    def sync(self) -> None:
        """Wait until the chassis have everything that was written so far."""
        self.nbctl("--wait=hv", "sync")

    def registered(self) -> set[str]:
        """The names of all chassis in the southbound database, dead ones too."""
        return set(self.sbctl("--bare", "--columns=name", "list", "Chassis").split())

    def heal(self) -> None:
        """Take every cut back."""
        self.switch.heal()

    def outside(self, name: str, mac: str, *addresses: str, gateway: str = "") -> Workload:
        """A machine on the physical network."""
        space = self.switch.make_namespace(f"o-{name}")
        self.switch.connect(f"o-{name}", space, "eth0", WIRE)
        no_offloads(self.switch.name, f"o-{name}")
        self.outsiders.append(name)
        return set_up(space, mac, addresses, gateway, 1500)

    def leader(self) -> Database:
        """The server that leads the northbound cluster."""
        found: Database = until(lambda: next((one for one in self.northbound if one.leads), None), "a server leads", 20)
        return found


def set_up(space: str, mac: str, addresses: Sequence[str], gateway: str, mtu: int) -> Workload:
    """Give the interface of a workload's namespace what it has."""
    run("ip", "-n", space, "link", "set", "eth0", "address", mac, "mtu", str(mtu))
    no_offloads(space, "eth0")
    for address in addresses:
        run("ip", "-n", space, "addr", "add", address, "dev", "eth0", *(("nodad",) if ":" in address else ()))
    run("ip", "-n", space, "link", "set", "eth0", "up")
    if gateway:
        run("ip", "-n", space, "route", "add", "default", "via", gateway, "dev", "eth0", "onlink")
    return Workload(space)


def no_offloads(space: str, interface: str) -> None:
    """Switch off what a datapath in userspace cannot do: packets that are merged, too long or without checksum."""
    run("ip", "netns", "exec", space, "ethtool", "-K", interface, *OFFLOADS)


def _bridge(name: str, interface: str) -> str:
    """The words of ovs-vsctl for a bridge that is an ordinary switch with one cable."""
    made = f"--may-exist add-br {name} -- set bridge {name} datapath_type=netdev fail-mode=standalone"
    return f"{made} -- --may-exist add-port {name} {interface}"


def _has_link(space: str, interface: str) -> bool:
    with contextlib.suppress(LabError):
        return bool(run("ip", "-n", space, "link", "show", interface))
    return False


def _interface(port: str) -> str:
    """The name of a port's interface, which the kernel limits to 15 letters."""
    return "v" + hashlib.sha256(port.encode()).hexdigest()[:10]
