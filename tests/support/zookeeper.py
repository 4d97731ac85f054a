"""Three real ZooKeeper servers, shared by the tests of a process; each test has a chroot of its own."""

from __future__ import annotations

import atexit
import itertools
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import yaml
from lab.zookeeper import ZooKeeperEnsemble

from outlive.base import Clock, Random, SystemClock, SystemIds
from outlive.store.zookeeper import ZooKeeperAccess, ZooKeeperClient, ZooKeeperStore
from tests.support.command import COMMAND, Server, environment, spawned
from tests.support.ensemble_guardian import end_servers, guard_folder

MEMORY = Path("/dev/shm")
SESSION_S = 4.0


class TestEnsemble(ZooKeeperEnsemble):
    """See the module."""

    __test__ = False

    def __init__(self, count: int = 3, *, settings: str = "", on_disk: bool = False) -> None:
        """``on_disk``: what is acknowledged is on a disk, as in production, and not in memory."""
        parent = MEMORY if MEMORY.is_dir() and not on_disk else None
        folder = Path(mkdtemp(prefix="outlive-zookeeper-", dir=parent))
        super().__init__(folder, count, settings=settings, sync=on_disk)
        self._numbers = itertools.count(1)
        self._guardian: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As every ensemble; its servers end with this process, also where that is killed."""
        if self._guardian is None:
            self._guardian = guard_folder(self.folder)
        super().start()

    def new_chroot(self) -> ZooKeeperAccess:
        """An access to a place of its own, which is not made yet."""
        return self.access(f"/test-{next(self._numbers)}")

    def access(self, chroot: str) -> ZooKeeperAccess:
        """An access to that place."""
        return ZooKeeperAccess(servers=self.addresses, chroot=chroot, session_s=SESSION_S)

    def remove(self) -> None:
        """End all servers, and delete what they had."""
        end_servers(self.folder)
        if self._guardian is not None:
            self._guardian.communicate()


@lru_cache(maxsize=1)
def shared_ensemble() -> TestEnsemble:
    """Started with the first call, ended with the process."""
    ensemble = TestEnsemble()
    atexit.register(ensemble.remove)
    ensemble.start()
    return ensemble


def zookeeper_store(access: ZooKeeperAccess, seed: int = 1, clock: Clock | None = None) -> ZooKeeperStore:
    """A store of its own there; it connects with the first call."""
    used = clock or SystemClock()
    return ZooKeeperStore(ZooKeeperClient(access), clock=used, ids=SystemIds(), random=Random(seed))


def access_file(path: Path, access: ZooKeeperAccess) -> Path:
    """The access as a file, such as commands read."""
    document: dict[str, object] = {"servers": list(access.servers), "chroot": access.chroot}
    document["sessionS"] = access.session_s
    if access.user:
        document |= {"user": access.user, "password": access.password}
    if access.tls is not None:
        document["tls"] = {"authority": access.tls.authority}
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o600)
    return path


@contextmanager
def running_controller(
    directory: Path, file: Path, *, listen: str = "127.0.0.1:0", enter: Sequence[str] = ()
) -> Iterator[Server]:
    """A process of ``outlive controller``, once it serves. ``enter``: a command that runs it somewhere else."""
    words = ["controller", "--store", "zookeeper", "--zookeeper", str(file)]
    command = [*enter, *COMMAND, *words, "--state-dir", str(directory), "--listen", listen]
    with (directory.parent / f"{directory.name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(), bufsize=1)
        server = Server(process, [])
        try:
            server.url = server.until("ready on").partition("ready on ")[2].split()[0]
            yield server
        finally:
            server.stop(signal.SIGKILL)


def ask_controller(server: Server, directory: Path, *words: str, enter: Sequence[str] = ()) -> str:
    """What a command prints that goes to this controller."""
    fingerprint = json.loads((directory / "server.json").read_text())["fingerprint"]
    env = {
        "OUTLIVE_SERVER": server.url,
        "OUTLIVE_TOKEN": f"@{directory / 'token'}",
        "OUTLIVE_FINGERPRINT": fingerprint,
    }
    done = spawned(*words, env=env, enter=enter)
    assert done.code == 0, done.err
    return done.out
