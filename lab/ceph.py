"""A small Ceph: one monitor, one manager, and storage daemons that keep everything in memory. Nothing of it lasts.

It listens where ``enter`` leads: on loopback, or at an address on the switch. Commands run with the rights of
``client.admin``; ``make_user`` makes others. A memory store does not survive its process, so ``start`` always begins
with an empty cluster.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.processes import LabError, Process, run, until

POOL = "vms"
RIGHTS = {
    "mon": 'profile rbd, allow command "osd blocklist", allow command "config-key get" with key prefix "outlive/", '
    'allow command "config-key set" with key prefix "outlive/", '
    'allow command "config-key dump" with key prefix "outlive/", '
    'allow command "config-key rm" with key prefix "outlive/"',
    "osd": "allow *",
    "mgr": "allow r",
}
"""Of the daemons' user, as in docs/how-to/storage.md …"""
GUESTS_USER = "libvirt"
GUESTS_RIGHTS = {"mon": "profile rbd", "osd": f"profile rbd pool={POOL}"}
"""… and of the guests', whose key libvirt keeps."""
GUESTS_SECRET = "3a0f4b8e-52c6-4a1c-9d0e-6f75746c6976"
"""By which libvirt knows that key."""
MODULES_OFF = (
    "cephadm dashboard restful prometheus rook diskprediction_local influx zabbix telegraf selftest snap_schedule nfs "
    "test_orchestrator stats mirroring mds_autoscaler k8sevents insights hello feedback alerts localpool "
    "osd_perf_query osd_support iostat cli_api"
)
"""Of the manager: 100 instead of 300 MiB. Without devicehealth, orchestrator, telemetry and volumes it is in error."""
CONF = """\
[global]
fsid = {fsid}
mon host = [v2:{address}:{v2},v1:{address}:{v1}]
public addr = {address}
public network = {address}/24
keyring = {state}/client.admin.keyring
log file = {state}/$name.log
admin socket =
run dir = {state}
crash dir = {state}/crash
pid file =
osd pool default size = {copies}
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool delete = true
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail warn = 1
mon data avail crit = 1
mon data avail low = 1
auth allow insecure global id reclaim = false
mgr initial modules =
mgr disabled modules = {modules}
osd objectstore = memstore
memstore device bytes = 1G
osd memory target = 939524096
osd memory base = 256M
osd op num shards = 2
osd op num threads per shard = 1
osd heartbeat interval = 1
osd heartbeat grace = {grace_s}
osd mon report interval = 1
mon osd adjust heartbeat grace = false
mon osd min down reporters = 1
mon osd min in ratio = 0
[client]
log file =
[mon.a]
keyring = {state}/mon.keyring
mon data = {state}/mon
[mgr.x]
keyring = {state}/mgr/keyring
mgr data = {state}/mgr
[osd]
admin socket = {sockets}-$id
keyring = {state}/osd-$id/keyring
osd data = {state}/osd-$id
"""


def here(*command: str) -> list[str]:
    """The command as it is: Ceph on loopback."""
    return list(command)


class Ceph:
    """One cluster, by its folder. ``enter`` turns a command into one that runs where the cluster is."""

    def __init__(
        self,
        state: Path,
        address: str = "127.0.0.1",
        enter: Callable[..., list[str]] = here,
        *,
        osds: int = 1,
        port: int = 16789,
        grace_s: int = 20,
    ) -> None:
        self.state = state
        self.conf = state / "ceph.conf"
        self.address = address
        self.osds = [Process(state / f"osd-{number}.pid") for number in range(osds)]
        self.mon = Process(state / "mon.pid")
        self._mgr = Process(state / "mgr.pid")
        self._clients = state / "clients"
        self._enter = enter
        self._port = port
        self._grace_s = grace_s

    def start(self) -> None:
        """Make an empty cluster with one pool and wait until it takes writes; fine if it runs."""
        if self.mon.pid and self._mgr.pid and all(osd.pid for osd in self.osds):
            return
        self.stop()
        shutil.rmtree(self.state, ignore_errors=True)
        self._make()
        self._daemon(self.mon, "ceph-mon", "a")
        until(lambda: self._answers("status"), "the monitor answers", 90, 0.2)
        self._daemon(self._mgr, "ceph-mgr", "x")
        for number in range(len(self.osds)):
            self.start_osd(number)
        up = f"{len(self.osds)} up"
        until(lambda: up in self.ceph("osd", "stat"), "the storage daemons are up", 60, 0.2)
        self.ceph("osd", "pool", "create", POOL, "8")
        self.ceph("osd", "pool", "application", "enable", POOL, "rbd")
        self.rbd("pool", "init", POOL, limit_s=60.0)

    def stop(self) -> None:
        """End every daemon that this folder remembers."""
        for process in (*self.osds, self._mgr, self.mon):
            process.signal(15)
        for process in (*self.osds, self._mgr, self.mon):
            process.stop(2.0)
        for number in range(len(self.osds)):
            Path(f"{self._sockets()}-{number}").unlink(missing_ok=True)

    def start_osd(self, number: int) -> None:
        """Start one storage daemon; an empty one where it did not exist."""
        folder = self.state / f"osd-{number}"
        if not folder.exists():
            self._make_osd(number, folder)
        self._daemon(self.osds[number], "ceph-osd", str(number))

    def ceph(self, *words: str, limit_s: float = 30.0) -> str:
        """The output of a command to the cluster."""
        return run(*self._enter("ceph", "--conf", str(self.conf), "--connect-timeout", "10", *words), limit_s=limit_s)

    def rbd(self, *words: str, limit_s: float = 30.0) -> str:
        """The output of a command about images."""
        return run(*self._enter("rbd", "--conf", str(self.conf), *words), limit_s=limit_s)

    def asked(self, *words: str) -> Any:
        """The answer of a command to the cluster, decoded."""
        return json.loads(self.ceph(*words, "--format", "json"))

    def make_user(self, name: str, **caps: str) -> Path:
        """The keyring file of a user with these rights: ``mon``, ``osd``, ``mgr``."""
        file = self.state / f"client.{name}.keyring"
        rights = [word for pair in caps.items() for word in pair]
        file.write_text(self.ceph("auth", "get-or-create", f"client.{name}", *rights))
        file.chmod(0o600)
        return file

    # --- what its clients have

    def make_clients(self) -> None:
        """Make the users of hosts, and what ``let_in`` gives to each host; once for each cluster."""
        folder = self._clients
        if folder.exists():
            return
        new = folder.with_suffix(".new")
        new.mkdir(exist_ok=True)
        lines = [line for line in self.conf.read_text().splitlines() if line.startswith(("fsid", "mon host"))]
        (new / "ceph.conf").write_text("\n".join(["[global]", *lines, ""]))
        shutil.copy(self.make_user("outlive", **RIGHTS), new / "ceph.client.outlive.keyring")
        keyring = str(self.make_user(GUESTS_USER, **GUESTS_RIGHTS))
        key = new / "guests.key"
        key.touch(0o600)
        key.write_text(run("ceph-authtool", keyring, "-n", f"client.{GUESTS_USER}", "--print-key").strip())
        (new / "guests.xml").write_text(
            f"<secret ephemeral='no' private='yes'><uuid>{GUESTS_SECRET}</uuid>"
            f"<usage type='ceph'><name>client.{GUESTS_USER}</name></usage></secret>"
        )
        new.rename(folder)

    def let_in(self, etc: Path) -> None:
        """Write into that folder what a host needs: configuration, the daemon's key, and the guests' for libvirt."""
        shutil.copytree(self._clients, etc / "ceph", dirs_exist_ok=True)

    @staticmethod
    def disk(image: str) -> str:
        """The element of a definition for that image of ``POOL``."""
        return f"""<disk type='network' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <auth username='{GUESTS_USER}'><secret type='ceph' uuid='{GUESTS_SECRET}'/></auth>
      <source protocol='rbd' name='{POOL}/{image}'/>
      <target dev='vda' bus='virtio'/>
    </disk>"""

    # --- how it is made

    def _make(self) -> None:
        for folder in ("mgr", "crash"):
            (self.state / folder).mkdir(parents=True)
        fsid = str(uuid.uuid4())
        self.conf.write_text(
            CONF.format(
                fsid=fsid,
                address=self.address,
                v1=self._port,
                v2=self._port + 1,
                state=self.state,
                copies=min(2, len(self.osds)),
                modules=MODULES_OFF,
                grace_s=self._grace_s,
                sockets=self._sockets(),
            )
        )
        admin = ("mon", "allow *", "osd", "allow *", "mgr", "allow *")
        self._key("client.admin.keyring", "client.admin", *admin)
        self._key("mon.keyring", "mon.", "mon", "allow *")
        self._key("mgr/keyring", "mgr.x", "mon", "allow profile mgr", "osd", "allow *")
        seed = self.state / "seed.keyring"
        seed.write_text("".join((self.state / name).read_text() for name in KEYS))
        seed.chmod(0o600)
        monmap, v2 = str(self.state / "monmap"), f"[v2:{self.address}:{self._port + 1},v1:{self.address}:{self._port}]"
        run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", v2, monmap)
        made = ("--mkfs", "--monmap", monmap, "--keyring", str(seed))
        run("ceph-mon", "--conf", str(self.conf), "-i", "a", *made)

    def _make_osd(self, number: int, folder: Path) -> None:
        folder.mkdir()
        name, made = f"osd.{number}", str(uuid.uuid4())
        rights = ("mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *")
        self._key(f"osd-{number}/keyring", name, *rights)
        key = run("ceph-authtool", str(folder / "keyring"), "-n", name, "--print-key").strip()
        (folder / "secrets.json").write_text(json.dumps({"cephx_secret": key}))
        self.ceph("osd", "new", made, str(number), "-i", str(folder / "secrets.json"))
        run("ceph-osd", "--conf", str(self.conf), "-i", str(number), "--mkfs", "--osd-uuid", made, "--no-mon-config")

    def _sockets(self) -> str:
        """Paths of sockets have 107 characters at most."""
        return f"/tmp/outlive-osd-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    def _key(self, file: str, name: str, *caps: str) -> None:
        words = [word for right in zip(caps[::2], caps[1::2], strict=True) for word in ("--cap", *right)]
        run("ceph-authtool", "--create-keyring", str(self.state / file), "--gen-key", "-n", name, *words)

    def _daemon(self, process: Process, program: str, name: str) -> None:
        log = self.state / f"{program}-{name}.out"
        process.start(self._enter(program, "--conf", str(self.conf), "-i", name, "-f"), log)

    def _answers(self, *words: str) -> bool:
        try:
            return bool(self.ceph(*words, limit_s=12.0))
        except LabError:
            return False


KEYS = ("client.admin.keyring", "mon.keyring", "mgr/keyring")
"""What the monitor knows from the beginning."""
