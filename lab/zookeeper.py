"""Some ZooKeeper servers on loopback that keep one state, and can be killed, stopped and cut off one by one.

To be cut off from the others a server runs as a user of its own, whose packets to them are dropped by nftables; its
clients reach it all the same. That needs root.
"""

from __future__ import annotations

import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lab.processes import LabError, Process, free_ports, run, until

JAR: Final = Path("/usr/share/java/zookeeper.jar")
CLASS_PATH: Final = ":".join(str(JAR.with_name(f"{name}.jar")) for name in (JAR.stem, "netty-codec", "netty-handler"))
"""Debian's package leaves out two libraries that encrypted connections need."""
HEAP_MB: Final = 64
TICK_MS: Final = 250
"""Sessions last 2 to 20 ticks; a leader that stands still is replaced after ``syncLimit`` of them."""
FIRST_USER: Final = 61_000
"""The numbers of users that servers run as follow this one."""
START_S: Final = 30.0
"""From which the kernel chooses one for each client that connects."""
WORD_S: Final = 1.0
WORD: Final = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1.0) as one:
    one.settimeout(1.0)
    one.sendall(sys.argv[2].encode())
    for part in iter(lambda: one.recv(65536), b""):
        sys.stdout.buffer.write(part)
"""
"""Prints what a server answers to a four-letter word, where its network is another one."""

Enter = Callable[..., list[str]]
"""Makes a command of a command that runs somewhere else."""
JAVA: Final = (
    *("-Xms16m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *("-XX:MaxMetaspaceSize=64m", "-XX:ReservedCodeCacheSize=24m", "-Xshare:auto", "-Djava.awt.headless=true"),
    *("-Dzookeeper.admin.enableServer=false", "-Dzookeeper.preAllocSize=512", "-Dzookeeper.jmx.log4j.disable=true"),
    "-Dzookeeper.extendedTypesEnabled=true",
)


def can_run() -> bool:
    """Whether ZooKeeper and Java are there."""
    return JAR.exists() and shutil.which("java") is not None


class ZooKeeperServer:
    """One server."""

    def __init__(self, folder: Path, number: int, client: int, enter: Enter | None = None) -> None:
        self.folder = folder
        self._enter = enter
        self.number = number
        self.client = client
        """The port of clients."""
        self.process = Process(folder / "server.pid")
        self.heap_mb = HEAP_MB
        """Memory for objects; with too little a new leader spends its first seconds on collecting garbage."""
        self.user = 0
        """As whom it runs; 0: as who started it."""

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"127.0.0.1:{self.client}"

    def word(self, word: str) -> str:
        """What it answers to a four-letter word; empty where it does not."""
        if self._enter is not None:
            try:
                return run(*self._enter(sys.executable, "-S", "-c", WORD, str(self.client), word))
            except LabError:
                return ""
        try:
            with socket.create_connection(("127.0.0.1", self.client), WORD_S) as one:
                one.settimeout(WORD_S)
                one.sendall(word.encode())
                return b"".join(iter(lambda: one.recv(65536), b"")).decode("utf-8", "replace")
        except OSError:
            return ""

    @property
    def mode(self) -> str:
        """``leader``, ``follower`` or ``standalone``; empty where it serves nobody."""
        lines = [line for line in self.word("srvr").splitlines() if line.startswith("Mode: ")]
        return lines[0].removeprefix("Mode: ") if lines else ""

    def start(self) -> None:
        """Start it unless it runs; it serves once a majority does."""
        command = [
            "java",
            f"-Xmx{self.heap_mb}m",
            *JAVA,
            "-cp",
            CLASS_PATH,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        ]
        if self.user:
            run("chown", "-R", str(self.user), str(self.folder))
            command = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", *command]
        command.append(str(self.folder / "zoo.cfg"))
        self.process.start(self._enter(*command) if self._enter else command, self.folder / "server.log")

    def kill(self) -> None:
        """End it at once."""
        self.process.signal(signal.SIGCONT)
        self.process.kill()

    def pause(self) -> None:
        """Have it stand still."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        self.process.signal(signal.SIGCONT)


class ZooKeeperEnsemble:
    """Some servers that keep one state; see the module."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        ports: Sequence[int] = (),
        sync: bool = False,
        settings: str = "",
        enter: Enter | None = None,
    ) -> None:
        """``ports``: of clients and then, two for each server, of the servers themselves; none: free ones. ``sync``:
        what is acknowledged is on the disk; ``settings``: more lines of each server's configuration; ``enter``: makes a
        command that runs in the network that the servers are in."""
        self.folder = folder
        all_ports = list(ports) or free_ports(3 * count)
        clients = all_ports[:count]
        self.servers = [ZooKeeperServer(folder / str(n), n, port, enter) for n, port in enumerate(clients, 1)]
        self._sync = sync
        self._settings = settings
        quorum = self._quorum = all_ports[count:]
        self._members = [f"server.{n}=127.0.0.1:{quorum[2 * n - 2]}:{quorum[2 * n - 1]}" for n in range(1, count + 1)]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients reach the servers."""
        return tuple(one.address for one in self.servers)

    def start(self) -> None:
        """Start what does not run, and return when each server serves."""
        if not can_run():
            raise LabError("there is no ZooKeeper: install zookeeper and default-jre-headless")
        for one in self.servers:
            self._configure(one)
            one.start()
        what = f"all servers serve: see {self.folder}/*/server.log"
        until(lambda: all(one.mode for one in self.servers), what, START_S)

    def stop(self) -> None:
        """End all."""
        for one in self.servers:
            one.kill()

    def leader(self) -> ZooKeeperServer:
        """The server that leads; waits for one."""
        found: ZooKeeperServer = until(
            lambda: next((one for one in self.servers if one.mode in ("leader", "standalone")), None),
            "a server leads",
            START_S,
        )
        return found

    def follower(self) -> ZooKeeperServer:
        """A server that follows; waits for one."""
        found: ZooKeeperServer = until(
            lambda: next((one for one in self.servers if one.mode == "follower"), None), "a server follows", START_S
        )
        return found

    def give_users(self) -> None:
        """Have each server run as a user of its own from its next start, so that it can be cut off."""
        self.folder.chmod(0o755)
        for one in self.servers:
            one.user = FIRST_USER + one.number

    def cut_off(self, server: ZooKeeperServer) -> None:
        """Drop every packet of the server to the others, until ``join_all``."""
        ports = ", ".join(map(str, self._quorum))
        rules = [f"meta skuid {server.user} tcp {way} {{ {ports} }} drop" for way in ("dport", "sport")]
        lines = ["chain out {", "type filter hook output priority 0", *rules, "}"]
        run("nft", "-f", "-", stdin="\n".join([f"table inet {self._table} {{", *lines, "}", ""]))

    def join_all(self) -> None:
        """Let all packets through again."""
        run("nft", "-f", "-", stdin=f"table inet {self._table}\ndelete table inet {self._table}\n")

    @property
    def _table(self) -> str:
        return f"zookeeper_{self.servers[0].client}"

    def take_snapshot(self) -> Path:
        """A copy of all servers' data, taken while none runs."""
        self.stop()
        copy = self.folder / "snapshot"
        shutil.rmtree(copy, ignore_errors=True)
        for one in self.servers:
            shutil.copytree(one.folder / "data", copy / str(one.number))
        self.start()
        return copy

    def go_back(self, copy: Path) -> None:
        """Have the data of that moment again."""
        self.stop()
        for one in self.servers:
            shutil.rmtree(one.folder / "data")
            shutil.copytree(copy / str(one.number), one.folder / "data")
        self.start()

    def _configure(self, server: ZooKeeperServer) -> None:
        data = server.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{server.number}\n")
        lines = [
            *(f"tickTime={TICK_MS}", "initLimit=40", "syncLimit=4", f"dataDir={data}"),
            *(f"clientPort={server.client}", "clientPortAddress=127.0.0.1", "maxClientCnxns=0"),
            *("4lw.commands.whitelist=*", "electionPortBindRetry=0", "cnxTimeout=500"),
            *([] if self._sync else ["forceSync=no"]),
            *(self._members if len(self.servers) > 1 else []),
            *self._settings.splitlines(),
        ]
        (server.folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
