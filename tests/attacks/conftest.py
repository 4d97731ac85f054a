"""A real server (``outlive up``) with real TLS, and hosts that renew their leases there under armed guards."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from outlive.api import digest_of
from outlive.base import Random, SystemClock
from outlive.resources import MemberRecord, Membership, ObjectMeta, Token
from outlive.store import HttpStore
from tests.support.command import Server, up
from tests.support.guards import Cgroups, Guard, Watchdog, boot_time_s, closing

GUARD_S = 3.0
"""T: an armed guard ends its guests when the last acknowledged renewal was sent so long ago."""
WATCHDOG_S = 5.0
RENEW_S = 0.2
WRITE_LIMIT_S = 2.0
HOSTS = 3
BESIDE_OTHERS = 5.0
"""How many times as long guards and writers wait where other tests run beside: the machine may stand still."""
_replace = msgspec.structs.replace


@dataclass
class Attacked:
    """The server, and what its clients need."""

    server: Server
    authority: str
    """File of its certificate."""
    admin: str

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority)

    def store(self, token: str = "") -> HttpStore:
        """The store as the owner of that token has it; the admin without one."""
        return HttpStore(self.server.url, token or self.admin, clock=SystemClock(), random=Random(1), tls=self.tls)

    async def token(self, name: str, role: str, host: str = "") -> str:
        """Another token."""
        secret = f"secret-of-{name}-{'x' * 16}"
        store = self.store()
        await store.create(
            Token(metadata=ObjectMeta(name=name), role=role, digest=digest_of(secret.encode()), host=host)
        )
        await store.close()
        return secret

    def resident_mib(self) -> float:
        """Memory of the server's process."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    key, made = directory / "server.key", directory / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=outlive", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return made, key


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    made, key = certificate(tmp_path)
    env = {"OUTLIVE_API__TLS_CERTIFICATE": str(made), "OUTLIVE_API__TLS_KEY": str(key)}
    with up(tmp_path / "state", env=env) as server:
        yield Attacked(server, str(made), (tmp_path / "state" / "token").read_text().strip())


@dataclass
class RenewingHost:
    """A host that renews its lease and passes each acknowledgement to its guard, as its daemon does."""

    name: str
    store: HttpStore
    guard: Guard
    guests: Cgroups
    patience: float = 1.0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is to end. It ends between two renewals: a call that is cancelled leaves a connection which says
    goodbye for longer than the loop lives."""
    took_s: list[float] = field(default_factory=list)
    """Of each renewal, whether or not it was acknowledged in time."""
    failures: list[str] = field(default_factory=list)

    async def renew(self) -> None:
        """Join, arm, and renew until it is over."""
        record = MemberRecord(machine_id="m", boot_id="b")
        member = await self.store.create(Membership(metadata=ObjectMeta(name=self.name), record=record))
        self.guard.arm(GUARD_S * self.patience, WATCHDOG_S * self.patience)
        clock, limit_s = SystemClock(), WRITE_LIMIT_S * self.patience
        while not self.over.is_set():
            began_s, sent_s = clock.monotonic(), boot_time_s()
            wanted = _replace(member, record=_replace(member.record, seq=member.record.seq + 1))
            try:
                async with asyncio.timeout(limit_s):
                    member = await self.store.replace(wanted)
                self.guard.beat(sent_s)
            except Exception as error:
                self.failures.append(repr(error))
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(limit_s):
                        member = await self.store.get(Membership, self.name, fresh=True)
            self.took_s.append(clock.monotonic() - began_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self.over.wait()

    @property
    def safe(self) -> bool:
        """Whether its guard is armed, lets VMs start, and has ended none."""
        status = self.guard.status()
        return bool(status["armed"]) and status["gate"] == "open" and self.guests.alive() == 1


@asynccontextmanager
async def renewing(
    attacked: Attacked, folder: Path, patience: float = BESIDE_OTHERS
) -> AsyncIterator[list[RenewingHost]]:
    """Hosts that renew while the block runs, which begins when each has renewed a few times."""
    with contextlib.ExitStack() as stack:
        hosts: list[RenewingHost] = []
        for number in range(1, HOSTS + 1):
            own = folder / f"kvm-{number}"
            own.mkdir()
            dog = stack.enter_context(closing(Watchdog(own / "watchdog")))
            guests = stack.enter_context(closing(Cgroups(own / "machine.slice")))
            guests.start("guest")
            options = ["--watchdog", str(dog.path), "--rehearsal", "--cgroup", str(guests.root)]
            guard = stack.enter_context(closing(Guard(own, *options)))
            secret = await attacked.token(f"host-kvm-{number}", "host", f"kvm-{number}")
            hosts.append(RenewingHost(f"kvm-{number}", attacked.store(secret), guard, guests, patience))
        tasks = [asyncio.create_task(host.renew()) for host in hosts]
        try:
            while any(len(host.took_s) < 3 for host in hosts):
                await asyncio.sleep(0.05)
                for task in tasks:
                    if task.done():
                        task.result()
            for host in hosts:
                host.took_s.clear()
            yield hosts
        finally:
            for host in hosts:
                host.over.set()
            await asyncio.wait(tasks)
            for host in hosts:
                await host.store.close()
