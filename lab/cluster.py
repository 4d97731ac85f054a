"""The laboratory as a whole: a store, three hosts with libvirt, daemon and guard, a BMC each, six guests.

Everything is recorded in the state directory, so any process can take hold of the same lab: ``Lab(Path("lab"))``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from lab import guest, watchdog
from lab.bmc import PASSWORD, USERNAME, Ipmi
from lab.ceph import GUESTS_SECRET, POOL, Ceph
from lab.hosts import NET, PROJECT, STORE, Host, Switch, Volume, hosts
from lab.kubernetes import NAMESPACE, Kubernetes
from lab.libvirtd import ALLOWED, Libvirtd
from lab.libvirtd import GUESTS as GUEST_GROUP
from lab.ovn import Ovn
from lab.processes import LabError, Process, run, until
from lab.zookeeper import ZooKeeperEnsemble

HOSTS = 3
GUESTS = 6
STORE_PORT = 8080
ZOOKEEPER_PORTS = (*range(2181, 2184), *range(2888, 2894))
"""Of three ZooKeeper servers on loopback in the network of the store: for clients, then among themselves."""
CEPH_NUMBER = 200
BMC_NUMBER = 100
"""BMCs have the addresses from here on."""
GUEST = "tick_ms=100"
"""It looks less often what is due than others do: emulated guests that rest take processor time."""
SECRET = "bmc"
GUARD_SOCKET = "/run/outlive-guard.sock"
BOARD_FILE = "/etc/outlive/board-uuid"
"""What a host's firmware says of its board: all hosts share the one of this machine."""
SETTINGS: dict[str, Any] = {
    "protection": {"levels": {"standard": {"slots": 1}}, "default": "standard"},
    "failover": {"trustHypervisorLocation": True},
}


class Lab:
    """See the module. ``start`` and ``stop`` are idempotent."""

    def __init__(
        self,
        state: Path,
        *,
        guests_count: int = GUESTS,
        homes: Sequence[str] = (),
        on_ceph: bool = False,
        on_kubernetes: bool = False,
        on_zookeeper: bool = False,
        on_ovn: bool = False,
        ovn_programs: Path | None = None,
    ) -> None:
        """``homes``: the hosts on which guests begin, in turn; none: all. ``on_ceph``: their disks are images.
        ``on_kubernetes``: the store is an API server; ``on_zookeeper``: it is three ZooKeeper servers; a lab that has
        one of these keeps it. ``on_ovn``: hosts are chassis, and
        there is one more, ``ch-4``, and a physical network; ``ovn_programs``: a folder with those of another version.
        """
        self.state = state.resolve()
        self.switch = Switch(self.state)
        self.hosts = hosts(self.switch, HOSTS)
        self.guests = [f"vm-{number}" for number in range(1, guests_count + 1)]
        self.homes = tuple(homes) or tuple(host.name for host in self.hosts)
        self.server = Process(self.state / "server.pid")
        """``outlive up``: the store and all controllers; on Kubernetes and ZooKeeper ``outlive controller``."""
        self.kubernetes: Kubernetes | None = None
        folder = self.state / "kubernetes"
        if on_kubernetes or folder.is_dir():
            self.kubernetes = Kubernetes(folder, partial(self.switch.inside, "store"))
        self.zookeeper: ZooKeeperEnsemble | None = None
        folder = self.state / "zookeeper"
        if on_zookeeper or folder.is_dir():
            enter = partial(self.switch.inside, "store")
            self.zookeeper = ZooKeeperEnsemble(folder, ports=ZOOKEEPER_PORTS, sync=True, enter=enter)
        self.disk_of_store = Volume(self.state / "store")
        self.ceph: Ceph | None = None
        if on_ceph:
            enter = partial(self.switch.inside, "ceph")
            self.ceph = Ceph(self.state / "ceph", f"{NET}.{CEPH_NUMBER}", enter)
        self.ovn: Ovn | None = None
        if on_ovn:
            self.ovn = Ovn(self.state / "ovn", 1, hosts=self.hosts, bin=ovn_programs, physical=True)
        self._watchdogs = Process(self.state / "watchdogs.pid")
        self.url = f"https://{NET}.{STORE}:{STORE_PORT}"

    # --- parts

    def host(self, name: str) -> Host:
        """One of the hosts; ``LabError`` for another name."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise LabError(f"no host {name!r}: one of {', '.join(host.name for host in self.hosts)}")

    def libvirtd(self, host: Host) -> Libvirtd:
        """Of that host."""
        return Libvirtd(host)

    def controller(self, host: Host) -> Ipmi:
        """The BMC of that host, wired to its power."""
        number = self.hosts.index(host) + 1
        name = f"bmc-{number}"
        hook = [sys.executable, "-S", str(PROJECT / "lab/power.py"), str(self.state), host.name]
        return Ipmi(
            self.state / "bmc",
            name,
            str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.switch.prefix}.{host.name}.system")),
            hook,
            host=f"{NET}.{BMC_NUMBER + number}",
            port=623,
            prefix=self.switch.inside(name),
        )

    def disk(self, name: str) -> Path:
        """The disk of a guest, or a copy of what its image holds now."""
        path = self.state / "disks" / f"{name}.raw"
        if self.ceph is not None:
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            self.ceph.rbd("export", "--no-progress", f"{POOL}/{name}", str(path))
        return path

    def console(self, name: str) -> Path:
        """What a guest wrote to its serial console, wherever it ran."""
        return self.state / "consoles" / f"{name}.log"

    @property
    def store_processes(self) -> dict[str, Process]:
        """What the store is made of, by what people call it."""
        if self.zookeeper is not None:
            servers = {f"ZooKeeper server {one.number}": one.process for one in self.zookeeper.servers}
            return {"the controller": self.server, **servers}
        if self.kubernetes is None:
            return {"the store": self.server}
        below = self.kubernetes
        return {"the controller": self.server, "the API server": below.server, "etcd": below.etcd}

    # --- start and stop

    def start(self) -> Iterator[str]:
        """Start whatever does not run; says each step when it is done."""
        guest.build()
        self.switch.start()
        self.disk_of_store.mount()
        yield "network is there: a switch, a store and three hosts"
        with ThreadPoolExecutor() as threads:
            storage = threads.submit(self._start_storage)
            self._start_network()
            self.start_server()
            yield f"outlive {'controller' if self.kubernetes or self.zookeeper else 'up'} listens at {self.url}"
            self.outlive("secret", "set", SECRET, "--username", USERNAME, stdin=PASSWORD)
            for host in self.hosts:
                self._prepare(host)
                self._start_controller(host)
            watchdogs = [sys.executable, "-S", str(PROJECT / "lab/watchdog.py"), str(self.state), str(len(self.hosts))]
            self._watchdogs.start(watchdogs, self.state / "watchdogs.log")
            yield "BMCs answer"
            storage.result()
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._boot, self.hosts))
        yield "libvirt answers on every host"
        self._start_network()  # now that its hosts run, they register
        until(self._all_joined, "all hosts are members of the cluster", 120, 0.2)
        self._apply(self._desired_hosts())
        yield "all hosts are members of the cluster"
        if self.guests and not self.objects("vms"):
            self._apply(self._desired_guests(), "--status")
        yield f"{len(self.guests)} guests are wanted"

    def stop(self) -> None:
        """End everything that runs, and remove networks and cgroups; disks, logs and the store's state stay."""
        for host in self.hosts:
            self.controller(host).stop()
        self._watchdogs.stop()
        for host in self.hosts:
            host.power_off()
            host.disk.unmount()
        self.server.stop()
        if self.kubernetes is not None:
            self.kubernetes.stop()
        if self.zookeeper is not None:
            self.zookeeper.stop()
        if self.ceph is not None:
            self.ceph.stop()
        if self.ovn is not None:
            self.ovn.stop()
        self.disk_of_store.unmount()
        self.switch.stop()

    # --- the product, as an operator uses it

    def outlive(self, *words: str, stdin: str = "", limit_s: float = 60.0) -> str:
        """What the command line prints, asked where the store is."""
        return run(*self.outlive_command(*words), stdin=stdin, limit_s=limit_s)

    def outlive_command(self, *words: str) -> list[str]:
        """The command line with the store's address and token."""
        program = Path(sys.executable).with_name("outlive")
        token = self.state / "store/token"
        env = [f"OUTLIVE_SERVER={self.url}", f"OUTLIVE_TOKEN=@{token}", f"OUTLIVE_FINGERPRINT={self._fingerprint()}"]
        return self.switch.inside("store", "env", *env, str(program), *words)

    def _fingerprint(self) -> str:
        """Of the server's own authority, which it made at its first start."""
        said: dict[str, Any] = json.loads((self.state / "store/server.json").read_text())
        return str(said["fingerprint"])

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind, as documents."""
        documents = json.loads(self.outlive("get", kind, "-o", "json"))
        items: list[dict[str, Any]] = documents["items"] if isinstance(documents, dict) else documents
        return items

    # --- below

    def start_server(self) -> None:
        """Start the store and all controllers, unless they run."""
        self.switch.plug("store", STORE)
        settings = dict(SETTINGS)
        if self.ovn is not None:
            settings["network"] = self._databases()
        (self.state / "settings.yaml").write_text(json.dumps(settings))
        program = str(Path(sys.executable).with_name("outlive"))
        words = ["--listen", f"{NET}.{STORE}:{STORE_PORT}", "--state-dir", str(self.state / "store")]
        words += ["--config", str(self.state / "settings.yaml")]
        if self.zookeeper is not None:
            words = ["controller", *words, "--store", "zookeeper", "--zookeeper", self._start_zookeeper(program)]
        elif self.kubernetes is not None:
            self.kubernetes.start()
            words = ["controller", *words, "--kubeconfig", str(self.kubernetes.kubeconfig), "--namespace", NAMESPACE]
        else:
            words = ["up", *words]
        command = self.switch.inside("store", program, *words)
        self.server.start(command, self.state / "server.log")
        until(self._server_answers, f"the server answers; see {self.state}/server.log", 90, 0.1)

    def _start_zookeeper(self, program: str) -> str:
        """Start the servers that do not run, and make what a store needs; the file by which it is reached."""
        assert self.zookeeper is not None
        self.zookeeper.start()
        file = self.zookeeper.folder / "access.yaml"
        file.write_text(json.dumps({"servers": list(self.zookeeper.addresses), "chroot": "/outlive"}))
        file.chmod(0o600)
        run(*self.switch.inside("store", program, "zookeeper", "init", "--zookeeper", str(file)))
        return str(file)

    def _server_answers(self) -> bool:
        if not self.server.pid:
            raise LabError(f"the server ended: see {self.state}/server.log")
        try:
            self.outlive("get", "clusters", limit_s=30)
        except (LabError, OSError, KeyError, ValueError):
            return False
        return True

    def _prepare(self, host: Host) -> None:
        host.disk.mount()
        host.make()
        clock = host.own_clock()
        self.libvirtd(host).make(clock)
        ask = f"{sys.executable} -I -S {PROJECT / 'lab/service.py'}"
        etc = host.folder / "etc/outlive"
        etc.mkdir(exist_ok=True)
        addresses = {"cluster": host.address}
        if self.ceph is not None:
            addresses["storage"] = host.address
        settings = {
            "host": {
                "name": host.name,
                "mode": "coordinator",
                "addresses": addresses,
                "capacity": {"cpu": "8", "memory": "2Gi"},
                "boardIdFile": BOARD_FILE,
            },
            "log": {"form": "json"},
            "libvirt": {
                "uri": "qemu:///system",
                "kind": "qemu",
                "slice": GUEST_GROUP,
                "user": "root",
                "migrationAddress": host.address,
                "startService": f"{ask} start libvirtd",
                **ALLOWED,
            },
            "guard": {"socket": GUARD_SOCKET},
            **({"network": {"driver": "ovn", **self._databases()}} if self.ovn is not None else {}),
        }
        (host.folder / BOARD_FILE.lstrip("/")).write_text(f"{self.controller(host).system_uuid}\n")
        if not (etc / "node.yaml").exists():
            (etc / "node.yaml").write_text(yaml.safe_dump(settings))
        program = str(Path(sys.executable).with_name("outlive"))
        guard = ["--socket", GUARD_SOCKET, "--cgroup", GUEST_GROUP, "--laboratory", str(host.folder / watchdog.FILE)]
        commands = ["--stop-service", f"{ask} stop libvirtd", "--start-service", f"{ask} start libvirtd"]
        host.add_service("30-guard", [program, "guard", *guard, *commands])  # which reads no wall clock
        host.add_service("40-node", [program, "node"], clock)

    def _databases(self) -> dict[str, str]:
        assert self.ovn is not None
        return {"northbound": self.ovn.nb_remote, "southbound": self.ovn.sb_remote}

    def _start_network(self) -> None:
        if self.ovn is not None:
            for host in self.hosts:
                host.disk.mount()
                host.make()
            self.ovn.start()

    def _start_storage(self) -> None:
        if self.ceph is not None:
            self.switch.plug("ceph", CEPH_NUMBER)
            self.ceph.start()
            self.ceph.make_clients()

    def _boot(self, host: Host) -> None:
        """Until it has a token and its libvirt answers."""
        if self.ceph is not None:
            self.ceph.let_in(host.folder / "etc")
        host.power_on()
        self._join(host)
        self.libvirtd(host).start()
        if self.ceph is not None:
            self._give_key(host)

    def _join(self, host: Host) -> None:
        """Exchange a token that is good once for the host's own."""
        if (host.folder / "etc/outlive/node.token").exists():
            return
        said = self.outlive("token", "create", "--join", "--coordinator", "--host", host.name, "-o", "json")
        token = json.loads(said)["token"]
        program = str(Path(sys.executable).with_name("outlive"))
        host.run(program, "node", "join", self.url, "--token", token, "--fingerprint", self._fingerprint())

    def _give_key(self, host: Host) -> None:
        """Let libvirt have the key of its guests, as docs/how-to/storage.md says."""
        virsh = self.libvirtd(host).virsh
        virsh("secret-define", "/etc/ceph/guests.xml")
        virsh("secret-set-value", "--secret", GUESTS_SECRET, "--file", "/etc/ceph/guests.key")

    def _start_controller(self, host: Host) -> None:
        number = self.hosts.index(host) + 1
        self.switch.plug(f"bmc-{number}", BMC_NUMBER + number)
        self.controller(host).start()

    def _all_joined(self) -> bool:
        held = {
            one["metadata"]["name"]
            for one in self.objects("memberships")
            if one["record"].get("state", "Held") == "Held"
        }
        return held >= {host.name for host in self.hosts}

    def _apply(self, documents: list[dict[str, Any]], *options: str) -> None:
        self.outlive("apply", "-f", "-", *options, stdin=json.dumps({"kind": "List", "items": documents}))

    def _desired_hosts(self) -> list[dict[str, Any]]:
        made = []
        for host in self.hosts:
            controller = self.controller(host)
            fencing = {
                "driver": "ipmi",
                "address": controller.address,
                "secret": SECRET,
                "options": {"cipherSuite": "3"},
            }
            spec = {"management": "node", "mode": "coordinator", "fencing": fencing}
            made.append(document("Hypervisor", host.name, spec))
        return made

    def make_guest_disk(self, name: str) -> str:
        """Make its disk, unless it is there; its element in the definition, empty: that of a raw file."""
        if self.ceph is None:
            guest.make_disk(self.disk(name))
            return ""
        with contextlib.suppress(LabError):  # it is there
            self.ceph.rbd("create", "--size", "1M", f"{POOL}/{name}")
        return self.ceph.disk(name)

    def _desired_guests(self) -> list[dict[str, Any]]:
        made = []
        for number, name in enumerate(self.guests):
            element = self.make_guest_disk(name)
            self.console(name).parent.mkdir(exist_ok=True)
            path = self.state / "disks" / f"{name}.raw"
            xml = guest.definition(name, path, self.console(name), extra=GUEST, element=element)
            host = self.homes[number % len(self.homes)]
            made_vm = document("VirtualMachine", name, {"definition": xml})
            made_vm["metadata"]["labels"] = {"outlive.dev/host": host}
            made.append({**made_vm, "status": {"assigned": {"hypervisor": host}, "home": host}})
        return made


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A document of that kind."""
    return {"apiVersion": "outlive.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
