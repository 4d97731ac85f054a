"""Faults: what lowers the cluster's health until it ends or somebody has acknowledged it.

``FaultRecorder`` writes them. A fault that goes on is refreshed now and then and not at every look; one that comes
again after it had ended is a new one, so that an old acknowledgement hides nothing. In maintenance nothing is
raised. Faults are for people: a store that is away loses them, and no decision rests on one
(docs/concepts/safety.md).
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, NotFound, OutliveError, Unknown
from outlive.base.logging import get_logger
from outlive.resources import Cluster, Fault, Hypervisor, ObjectMeta, ObjectRef
from outlive.resources.maintenance import cluster_maintenance, host_maintenance, power_maintenance
from outlive.store import Store

REFRESH_S: Final = 60.0
"""How often a fault that goes on is written again."""
TRIES: Final = 4
"""Writes of one fault before it is given up until the next time."""
LIMIT_S: Final = 10.0
"""How long writing one fault may take, all tries together."""
LEFT_S: Final = 3 * REFRESH_S
"""Nobody says any more what was not written again for so long."""
RAISED_LIMIT: Final = 10_000
"""Faults of which it is remembered when they were written."""
MESSAGE_CHARACTERS: Final = 1024
"""What is kept of a message and of a remedy."""

Role = Literal["daemon", "fencer", "recovery", "controller"]

POWER_CODES: Final = ("power-not-rehearsed", "power-unreachable")
"""Faults of power controllers, of which nobody wants to hear while somebody works on them."""

_log = get_logger("faults")


def fault_name(code: str, subject: ObjectRef) -> str:
    """``<code>.<subject>``."""
    return f"{code}.{subject.name}"


class FaultRecorder:
    """See the module. ``store`` is the one that ``writer`` may use."""

    def __init__(self, store: Store, clock: Clock, writer: Role) -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._raised: dict[str, tuple[str, float]] = {}
        """What was written last under a name, and when (monotonic)."""
        self._refreshed: dict[str, tuple[str, float]] = {}
        """Version in which a fault of others was seen last, and since when (monotonic)."""

    async def raise_(self, code: str, subject: ObjectRef, message: str, *, remedy: str = "", delta: int = 0) -> None:
        """Say that something is wrong. Never raises errors of the store."""
        name, now = fault_name(code, subject), self._clock.monotonic()
        message, remedy = message[:MESSAGE_CHARACTERS], remedy[:MESSAGE_CHARACTERS]
        said, at = self._raised.get(name, ("", 0.0))
        if said == message and now - at < REFRESH_S:
            return
        try:
            async with asyncio.timeout(LIMIT_S):
                if await self._maintenance(code, subject):
                    return
                for _ in range(TRIES):
                    if await self._write(name, code, subject, message, remedy, delta):
                        break
        except (OutliveError, TimeoutError) as error:
            _log.warning("fault.not_written", fault=name, message=message, writer=self._writer, error=str(error))
            return
        if len(self._raised) >= RAISED_LIMIT:
            self._raised.clear()
        self._raised[name] = (message, now)
        if said != message:
            _log.warning("fault.raised", fault=name, message=message, remedy=remedy, delta=delta, writer=self._writer)

    async def end(self, code: str, subject: ObjectRef) -> None:
        """Say that it is over; fine if it never was. Never raises errors of the store."""
        name = fault_name(code, subject)
        self._raised.pop(name, None)
        try:
            async with asyncio.timeout(LIMIT_S):
                for _ in range(TRIES):
                    if await self._finish(name):
                        break
        except (OutliveError, TimeoutError) as error:
            _log.warning("fault.not_ended", fault=name, writer=self._writer, error=str(error))

    async def end_left(self, code: str, subject: ObjectRef) -> None:
        """Look whether it stands, and end it once nobody has refreshed it for long; whoever raised it may be gone.

        Never raises errors of the store.
        """
        name, now = fault_name(code, subject), self._clock.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                kept = await self._kept(name)
        except (OutliveError, TimeoutError):
            return
        if kept is None or kept.ended:
            self._refreshed.pop(name, None)
            return
        version, since = self._refreshed.get(name, ("", now))
        if version != kept.metadata.resource_version:
            self._refreshed[name] = (kept.metadata.resource_version, now)
        elif now - since >= LEFT_S:
            await self.end(code, subject)

    async def _write(self, name: str, code: str, subject: ObjectRef, message: str, remedy: str, delta: int) -> bool:
        """One try; ``False`` for one that lost against another writer, or whose answer was lost."""
        now = as_datetime(self._clock.now())
        subject = msgspec.structs.replace(subject, uid="")
        new = Fault(
            metadata=ObjectMeta(name=name),
            code=code,
            subject=subject,
            message=message,
            remedy=remedy,
            delta=delta,
            first_seen=now,
            last_seen=now,
        )
        try:
            kept = await self._kept(name)
            if kept is not None and kept.ended:
                await self._store.delete(kept.ref, uid=kept.metadata.uid, version=kept.metadata.resource_version)
                kept = None
            if kept is None:
                await self._store.create(new)
            else:
                changed = msgspec.structs.replace(
                    kept, subject=subject, message=message, remedy=remedy, delta=delta, last_seen=now
                )
                await self._store.replace(changed)
        except (AlreadyExists, Conflict, NotFound, Unknown):
            return False
        return True

    async def _finish(self, name: str) -> bool:
        kept = await self._kept(name)
        if kept is None or kept.ended:
            return True
        now = as_datetime(self._clock.now())
        try:
            await self._store.replace(msgspec.structs.replace(kept, ended=True, last_seen=now))
        except (Conflict, Unknown):
            return False
        _log.info("fault.ended", fault=name, writer=self._writer)
        return True

    async def _kept(self, name: str) -> Fault | None:
        try:
            return await self._store.get(Fault, name, fresh=True)
        except NotFound:
            return None

    async def _maintenance(self, code: str, subject: ObjectRef) -> bool:
        """Whether nobody wants to hear of this now."""
        now = self._clock.now()
        try:
            cluster = await self._store.get(Cluster, "default")
            if cluster_maintenance(cluster.spec, now):
                return True
        except NotFound:
            pass
        if subject.kind not in ("Hypervisor", "Membership"):
            return False
        try:
            host = await self._store.get(Hypervisor, subject.name)
        except NotFound:
            return False
        fencing = host.spec.fencing
        return host_maintenance(fencing, now) or (code in POWER_CODES and power_maintenance(fencing, now))
