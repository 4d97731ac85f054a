"""A process that is killed at each write of a batch of commitments: what the next one on the same disk makes of it.

``python -m bench.kills FOLDER WRITE MOMENT`` is such a process: it sends the batch and kills itself with SIGKILL at
that write, before it is made or once it is.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from bench.changes import GIB, SETTINGS, ZONE
from bench.figures import Figure
from outlive.base import Random, SystemClock, SystemIds, Unavailable
from outlive.commitments import Batch, CommitmentRequest, ProjectRequest, ResourceRequest
from outlive.failover import Inline
from outlive.placement import HYPERVISOR_TYPE
from outlive.resources import (
    COMMITTED,
    ZONE_LABEL,
    Amounts,
    CommitmentChange,
    CommittedResource,
    Condition,
    DomainCapabilities,
    Flavor,
    FlavorSpec,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    R,
    Reservation,
)
from outlive.roles import Ports, UpRole
from outlive.store import Change, Selector, Store, StoreProxy, list_all
from outlive.store.sqlite import SqliteStore

T = TypeVar("T")
PROJECTS, EACH, HOSTS = 5, 4, 3
"""The batch has 20 commitments."""
NEVER: Final = 10**9
READY_S: Final = 60.0
"""How long a process may take to lead and to have applied what it finds."""
MOMENTS: Final = ("before", "after")
LOOKS: Final = "looks"
"""The moment of a process that is not killed and says what it finds."""
KILLED_SHARE: Final = 0.9
AT_ONCE: Final = 12
"""Processes: each waits some ten seconds until the lease of the killed one is over."""


class Killed(StoreProxy):
    """The store of a process that kills itself at one of its writes."""

    def __init__(self, store: SqliteStore, at: int, moment: str) -> None:
        self._store = store
        self._at = at
        self._moment = moment
        self.writes = -1
        """Counted from the batch on; less than 0: not yet."""
        self.embedded = store.embedded
        self.incarnation = store.incarnation

    def arm(self) -> None:
        """The batch begins."""
        self.writes = 0

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._store)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        self.writes += self.writes >= 0
        mine = self.writes == self._at
        if mine and self._moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = await call(self._store)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        return self._store.observe(kind, selector=selector)

    async def close(self) -> None:
        await self._store.close()


def batch() -> Batch:
    """Twenty commitments of five projects."""
    return Batch(
        zone=ZONE,
        projects=tuple(
            ProjectRequest(
                project=f"p{project}",
                resources=(
                    ResourceRequest(
                        name="hw_version_g_ram",
                        confirmed_after=EACH,
                        commitments=tuple(
                            CommitmentRequest(uuid=f"kill-{project}-{one}", new_status="confirmed", amount=1)
                            for one in range(EACH)
                        ),
                    ),
                ),
            )
            for project in range(PROJECTS)
        ),
    )


async def _fill(folder: Path) -> None:
    store = await SqliteStore.open(folder, clock=SystemClock(), ids=SystemIds())
    size = Amounts(cpu=2000, memory=8 * GIB)
    specs = {"quota:hw_version": "g", HYPERVISOR_TYPE: "QEMU"}
    flavor = FlavorSpec(flavor_name="m8", resources=size, extra_specs=specs)
    await store.create(Flavor(metadata=ObjectMeta(name="m8"), spec=flavor))
    for number in range(HOSTS):
        labels = {ZONE_LABEL: ZONE}
        written = await store.create(Hypervisor(metadata=ObjectMeta(name=f"h{number}", labels=labels)))
        status = HypervisorStatus(
            capacity=Amounts(cpu=64_000, memory=64 * GIB),
            allocation=Amounts(cpu=0, memory=0),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
            conditions=(Condition(type="Ready", status="True"),),
        )
        await store.replace_status(msgspec.structs.replace(written, status=status))
    await store.close()


async def _live(folder: Path, at: int, moment: str, story: Callable[[UpRole, Killed], Awaitable[T]]) -> T:
    clock, ids = SystemClock(), SystemIds()
    store = Killed(await SqliteStore.open(folder, clock=clock, ids=ids), at, moment)
    ports: Any = Ports(computer=Inline())
    made = UpRole(store, SETTINGS, ports, identity="kills", clock=clock, random=Random(1), ids=ids)
    await made.prepare()
    running = asyncio.create_task(made.run())
    try:
        async with asyncio.timeout(READY_S):
            while made.explain_unready() or not made.commitments.view.groups_by_name():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.05)
            return await story(made, store)
    finally:
        made.stop()
        await running
        await store.close()


async def _send(made: UpRole, store: Killed) -> int:
    """Send the batch; how many writes it took until it was applied."""
    store.arm()
    refusal = await _answered(lambda: made.commitments.changes.change(batch(), request_id="", requested_by="bench"))
    if refusal is not None:
        raise SystemExit(f"the batch was refused: {refusal.reason}")
    await _settled(store)
    return store.writes


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, asked for until the process leads."""
    while True:
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.05)


async def _settled(store: Store) -> None:
    waits = True
    while waits:
        await asyncio.sleep(0.05)
        waits = any([one.phase == "decided" async for one in list_all(store, CommitmentChange)])


async def _found(made: UpRole, store: Killed) -> tuple[int, int]:
    """Commitments and slots that the next process has, once it has done what was left to do."""
    await _answered(lambda: made.commitments.changes.dry_run(batch(), request_id=""))  # answered once that is done
    await _settled(store)
    commitments = [one async for one in list_all(store, CommittedResource)]
    slots = [one async for one in list_all(store, Reservation) if one.spec.type == COMMITTED]
    return len(commitments), len(slots)


def _trial(folder: Path, number: int, moment: str) -> tuple[bool, tuple[int, int]]:
    """Whether the process was killed, and what the next one has."""
    state = folder / f"{number}-{moment}"
    shutil.copytree(folder / "filled", state)
    command = [sys.executable, "-m", "bench.kills", str(state)]
    first = subprocess.run([*command, str(number), moment], check=False, capture_output=True)
    second = subprocess.run([*command, str(NEVER), LOOKS], check=True, capture_output=True)
    shutil.rmtree(state)
    commitments, slots = second.stdout.split()[-2:]
    return first.returncode == -signal.SIGKILL, (int(commitments), int(slots))


def killed_few(ended: Sequence[tuple[bool, tuple[int, int]]]) -> bool:
    """Whether so little was killed, or was there afterwards, that the figure would say nothing. Writes of other parts
    of the process count as well, so that the last ones are not reached each time."""
    killed = sum(was for was, _ in ended)
    return killed < KILLED_SHARE * len(ended) or not any(found != (0, 0) for _, found in ended)


def measure() -> list[Figure]:
    """The figure: batches that are neither there as a whole nor not at all."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(AT_ONCE) as pool:
        folder = Path(name)
        asyncio.run(_fill(folder / "filled"))
        shutil.copytree(folder / "filled", folder / "counted")
        writes = asyncio.run(_live(folder / "counted", NEVER, "", _send))
        trials = itertools.product(range(1, writes + 1), MOMENTS)
        ended = list(pool.map(lambda one: _trial(folder, *one), trials))
    if killed_few(ended):
        raise SystemExit("the processes were not killed, or none of them had done anything: nothing was measured")
    all_of_it = (PROJECTS * EACH, PROJECTS * EACH)
    half = sum(found not in ((0, 0), all_of_it) for _, found in ended)
    whole = sum(found == all_of_it for _, found in ended)
    killed = sum(was for was, _ in ended)
    size = f"{writes} writes, {killed} kills before and after each; all of it was there {whole} times"
    what = f"kill -9 at each write of a batch of {PROJECTS * EACH} changes, restarted: half batches"
    return [Figure(what, half, "", 0.0, note=size)]


def main() -> None:
    """One process."""
    folder, at, moment = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if moment == LOOKS:
        print(*asyncio.run(_live(folder, at, moment, _found)))
    else:
        asyncio.run(_live(folder, at, moment, _send))


if __name__ == "__main__":
    main()
