"""Three coordinators in namespaces on three ZooKeeper servers: each a real ``outlive node``, which makes its own links.

They share one switch (namespace ``fab``), on which each has ``eth0``. The ensemble listens on the machine's loopback; a
forwarder has it at the switch's address. Controllers run on two hosts. Nothing here is replaced by something simpler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from tests.support.command import Server, outlive, spawned
from tests.support.hosts import Host, within
from tests.support.network_hosts import NetworkHosts
from tests.support.primary_hosts import lost_pings
from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper import access_file, ask_controller, running_controller, shared_ensemble

NAMES = ("node-11", "node-12", "node-13")
PLAIN = "node-14"
"""A host that is no coordinator, and uses the API of the controllers."""
UNIT = Path(__file__).resolve().parents[2] / "packaging/systemd/outlive-node.service"
NETWORKS = UNIT.parents[1] / "outlive-node-networks.conf"
SWITCH, FLOATING = "10.91.0.1", "10.91.0.250"
NET = "10.91.0.0/24"
DENY_WRITE_EXECUTE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""As ``MemoryDenyWriteExecute=yes`` of a unit."""
API_PORT = 8443
LIMIT_S = 60.0


class BareMetal:
    """All of it; ``stack`` ends what was started."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.spaces = NetworkHosts(f"ol{os.getpid()}", (*NAMES, PLAIN), ())
        access = replace(shared_ensemble().new_chroot(), user="ctl", password="a")
        self.file = access_file(folder / "ctl.yaml", access)
        """How the machine itself reaches the ensemble, with the rights of a controller."""
        self._inside = replace(access, servers=tuple(f"{SWITCH}:{one.client}" for one in shared_ensemble().servers))
        self.hosts: dict[str, Host] = {}
        self.controllers: dict[str, Server] = {}

    # --- what it is made of

    def make(self) -> None:
        """Networks, the cluster's own documents and two controllers."""
        self._stack.callback(shared_ensemble().start)  # where a test has killed a server of it
        self._stack.callback(self.spaces.close)
        self.spaces.make()
        self.spaces.ip("fab", "link", "add", "sw0", "type", "bridge", "forward_delay", "0")
        self.spaces.ip("fab", "link", "set", "sw0", "up")
        self.spaces.ip("fab", "addr", "add", f"{SWITCH}/24", "dev", "sw0")
        self._forward()
        controllers = access_file(self.folder / "controllers.yaml", self._inside)
        coordinators = access_file(self.folder / "coord.yaml", replace(self._inside, user="coord", password="b"))
        self.command("zookeeper", "init", "--coordinators", coordinators)
        for number, name in enumerate((*NAMES, PLAIN)):
            self.spaces._cable(name, "eth0", "fab", f"p{number}", "", "sw0")
            self.spaces.ip(name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        for name in NAMES[1:]:
            state, listen = self.folder / f"controller-{name}", f"{self.address(name)}:{API_PORT}"
            enter = self.enter(name)
            controller = running_controller(state, controllers, listen=listen, enter=enter)
            self.controllers[name] = self._stack.enter_context(controller)
        self.apply("Cluster", "default", {"systemNetworks": {"cluster": {"cidr": NET, "floating": FLOATING}}})
        server = {
            "store": "zookeeper",
            "zookeeper": str(coordinators),
            "keyFile": str(self.folder / f"controller-{NAMES[1]}" / "cluster-key"),
        }
        for name in NAMES:
            self._add_host(name, server=server)
            self.hosts[name].sections["host"]["mode"] = "coordinator"
            self.hosts[name].configure()

    def join(self) -> Host:
        """The plain host, with a token that it was given for a join token."""
        name, server = next(iter(self.controllers.items()))
        host = self._add_host(PLAIN)
        del host.sections["server"]
        host.configure()
        token = self.folder / "join.token"
        token.write_text(
            json.loads(self.api_command("token", "create", "--join", "--host", PLAIN, "-o", "json"))["token"]
        )
        token.chmod(0o600)
        seen = json.loads((self.folder / f"controller-{name}" / "server.json").read_text())["fingerprint"]
        words = ("node", "join", server.url, "--token", f"@{token}", "--fingerprint", seen, "--config", host.config)
        done = spawned(*words, enter=self.enter(PLAIN))
        assert done.code == 0, done.err
        host.sections["server"] = yaml.safe_load(host.config.read_text())["server"]
        host.sections["server"]["url"] = ",".join(one.url for one in self.controllers.values())
        host.configure()
        return host

    def _add_host(self, name: str, **sections: dict[str, Any]) -> Host:
        links = {"systemNetworks": {"cluster": {"device": "eth0"}}, "confirmTimeout": "4s"}
        services = {"publicDir": str(self.folder / f"public-{name}")}
        host = Host(self.folder / name, name, "", Path(), links=links, services=services, **sections)
        host.enter = (*self.enter(name), *unit_rights())
        self.hosts[name] = host
        self._stack.callback(host.close)
        return host

    @staticmethod
    def address(name: str) -> str:
        """Of a host, by the number in its name."""
        return f"10.91.0.{name.rpartition('-')[2]}"

    def enter(self, name: str) -> tuple[str, ...]:
        """What runs a command on a host."""
        return ("ip", "netns", "exec", f"{self.spaces.prefix}-{name}")

    def _forward(self) -> None:
        """Have the servers of the ensemble at the address of the switch."""
        loop = asyncio.new_event_loop()
        with self.spaces.inside("fab"):
            sockets = [(one.client, socket.create_server((SWITCH, one.client))) for one in shared_ensemble().servers]

        async def serve() -> None:
            for port, listening in sockets:
                await asyncio.start_server(TcpProxy(port).serve, sock=listening)

        loop.run_until_complete(serve())
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        def end() -> None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0.1))
            loop.close()
            for _, listening in sockets:
                listening.close()

        self._stack.callback(end)

    # --- what is asked of it

    def command(self, *words: str | Path) -> str:
        """What a command prints that goes to the ensemble itself."""
        store = () if words[0] == "zookeeper" else ("--store", "zookeeper")
        done = outlive(*words, *store, "--zookeeper", self.file)
        assert done.code == 0, f"{words}: {done.err}"
        return done.out

    def apply(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        """Apply a document."""
        document = {"apiVersion": "outlive.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        file = self.folder / f"{kind}.json"
        file.write_text(json.dumps(document))
        self.command("apply", "-f", file)

    def api_command(self, *words: str) -> str:
        """The same over the API of a controller."""
        name, server = next(iter(self.controllers.items()))
        return ask_controller(server, self.folder / f"controller-{name}", *words, enter=self.enter("fab"))

    def documents(self, plural: str) -> list[dict[str, Any]]:
        """All documents of a kind."""
        found = json.loads(self.command("get", plural, "-o", "json") or "[]")
        items: list[dict[str, Any]] = found.get("items", [found]) if isinstance(found, dict) else found
        return items

    def primary(self) -> str:
        """Who has the role, once a hand-over is over; empty while nobody has."""
        record = next(
            (one["record"] for one in self.documents("elections") if one["metadata"]["name"] == "primary"), {}
        )
        holder: str = record.get("holder", "") if not record.get("phase") else ""
        return holder

    def pings(self, address: str, space: str = "fab") -> bool:
        """Whether one answers."""
        try:
            self.spaces.run(space, "ping", "-c1", "-W1", "-q", address)
        except AssertionError:
            return False
        return True

    @contextmanager
    def pinged(self, address: str) -> Iterator[list[int]]:
        """Ping an address every 25 ms from the switch meanwhile; afterwards how many were sent, and how many lost."""
        command = [*self.enter("fab"), "ping", "-q", "-i", "0.025", "-W", "1", address]
        found: list[int] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                yield found
            finally:
                child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=10)
        found.extend(lost_pings(out))

    def cut_power(self, name: str, address: str) -> Future[float]:
        """End a host at once, with all that runs there; after how long an address answers the switch from elsewhere."""
        began = time.monotonic()
        self.spaces.ip("fab", "link", "set", f"p{(*NAMES, PLAIN).index(name)}", "down")
        for pid in self.spaces.run("fab", "ip", "netns", "pids", f"{self.spaces.prefix}-{name}").split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        ping = [*self.enter("fab"), "ping", "-c1", "-W0.2", "-q", address]

        def wait_answer() -> float:
            while subprocess.run(ping, capture_output=True, check=False).returncode:
                if time.monotonic() - began > LIMIT_S:
                    break
                time.sleep(0.05)
            return time.monotonic() - began

        answers = ThreadPoolExecutor(1, "pings")
        self._stack.callback(answers.shutdown)
        return answers.submit(wait_answer)

    def wait(self, claim: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
        """Wait until it is so; for how long that was."""
        began = time.monotonic()
        assert within(limit_s, claim), f"{what} is not so after {limit_s:g} s\n{self.told()}"
        return time.monotonic() - began

    def told(self) -> str:
        """The ends of all logs, and the faults."""
        logs = [f"--- {one.name}\n{one.said()[-1000:]}{one.logged()[-4000:]}" for one in self.hosts.values()]
        return "\n".join([*logs, *(str(one) for one in self.faults())])

    def faults(self) -> set[tuple[str, str]]:
        """The faults that are there: code, and whom they are about."""
        return {(one["code"], one["subject"]["name"]) for one in self.documents("faults") if not one.get("ended")}


def unit_rights() -> tuple[str, ...]:
    """What runs a daemon with the capabilities of its systemd unit and the drop-in for networks, and no others."""
    lines = [*UNIT.read_text().splitlines(), *NETWORKS.read_text().splitlines()]
    given = [one.partition("=")[2] for one in lines if one.startswith("CapabilityBoundingSet=")]
    kept = [f"+{one.removeprefix('CAP_').lower()}" for one in " ".join(given).split()]
    rights = ("setpriv", "--no-new-privs", f"--bounding-set={','.join(['-all', *kept])}")
    return (*rights, sys.executable, "-I", "-S", "-c", DENY_WRITE_EXECUTE)


@contextmanager
def bare_metal() -> Iterator[BareMetal]:
    """Have it, in a folder that programs without rights can read too."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlive-")))
        folder.chmod(0o755)
        made = BareMetal(folder, stack)
        made.make()
        yield made
