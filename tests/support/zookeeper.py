"""Three real ZooKeeper servers, shared by the tests of a process; each test has a chroot of its own."""

from __future__ import annotations

import atexit
import itertools
import shutil
import signal
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from lab.zookeeper import ZooKeeperEnsemble

from outlive.base.clock import Clock, SystemClock
from outlive.base.ids import SystemIds
from outlive.base.random import Random
from outlive.store.zookeeper import ZooKeeperAccess, ZooKeeperClient, ZooKeeperStore

MEMORY = Path("/dev/shm")
SESSION_S = 4.0


class TestEnsemble(ZooKeeperEnsemble):
    """See the module."""

    __test__ = False

    def __init__(self, count: int = 3) -> None:
        folder = Path(mkdtemp(prefix="outlive-zookeeper-", dir=MEMORY if MEMORY.is_dir() else None))
        super().__init__(folder, count)
        self._numbers = itertools.count(1)

    def new_chroot(self) -> ZooKeeperAccess:
        """An access to a place of its own, which is not made yet."""
        return self.access(f"/test-{next(self._numbers)}")

    def access(self, chroot: str) -> ZooKeeperAccess:
        """An access to that place."""
        return ZooKeeperAccess(servers=self.addresses, chroot=chroot, session_s=SESSION_S)

    def remove(self) -> None:
        """End all servers, and delete what they had."""
        for one in self.servers:
            one.process.signal(signal.SIGCONT)
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


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
