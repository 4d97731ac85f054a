"""What is left to do around fences: faults that are told and end, and trust.

None of it is urgent, and all of it is found again by looking. What everybody could do is done by the first of the
coordinators; a second one doing the same would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.fencing.desk import Desk
from outlive.node.fencing.trusting import TRUST_AGAIN, TrustView
from outlive.resources import MemberRecord, ObjectRef
from outlive.resources.reasons.faults import FaultCode

CLUSTER: Final = ObjectRef(kind="Cluster", name="default")
LOOK_S: Final = 2.0
"""How often is looked for what is left to do."""
TELL_S: Final = 60.0
"""How often is said that a host is dead."""

_log = get_logger("fencing")


class Aftermath:
    """See the module. ``leads``: whether this fencer is the one that does what everybody could."""

    def __init__(self, desk: Desk, leads: Callable[[], bool]) -> None:
        self._desk = desk
        self._leads = leads
        self._back: dict[str, None] = {}
        """Hosts that came back from a fence: their faults end."""
        self._dead: dict[str, str] = {}
        """Hosts that are proven dead, and how: a fault is raised, by whoever leads then."""
        self._told: dict[str, float] = {}
        """Dead hosts of which I told, and when I do so again."""
        self._distrusted: dict[str, None] = {}
        """Hosts of which some kind of proof is not trusted."""
        self._holds: dict[FaultCode, tuple[ObjectRef, str, str]] = {}
        """What is not condemned, why, and what helps."""
        self._said: dict[FaultCode, ObjectRef] = {}
        """Faults of these kinds that I raised."""
        self._left_s = 0.0
        """When is looked for what others left (monotonic)."""

    def changed(self, host: str, before: MemberRecord | None, now: MemberRecord) -> None:
        """A Membership that has had a fence changed."""
        if now.state == "Held":
            if before is None or before.state == "Revoked":
                self._back[host] = None
            self._dead.pop(host, None)
            self._told.pop(host, None)
        elif now.state == "Revoked" and now.dead_through >= now.fence.epoch:
            self._dead[host] = "" if now.proof is None else f"{now.proof.kind}: {now.proof.evidence}"
        if now.state == "Revoked":
            self._back.pop(host, None)

    def gone(self, host: str) -> None:
        """Its Membership, which had had a fence, is gone, or another one is there in its place."""
        self._back[host] = None
        self._dead.pop(host, None)
        self._told.pop(host, None)

    def hold(self, code: FaultCode, message: str, remedy: str, about: ObjectRef = CLUSTER) -> None:
        """Nobody is condemned, or ``about`` is not, for this reason."""
        self._holds[code] = (about, message, remedy)

    def release(self, code: FaultCode) -> None:
        """That reason has gone."""
        self._holds.pop(code, None)

    def trust(self, host: str, record: MemberRecord | None) -> None:
        """A Membership changed, or is seen for the first time."""
        if record is not None and record.distrusted:
            self._distrusted[host] = None
        else:
            self._distrusted.pop(host, None)

    async def proven(self, host: str) -> None:
        """A fence of mine has ended in a proof."""
        await self._desk.faults.end(FaultCode.FENCE_UNCONFIRMED, ObjectRef(kind="Hypervisor", name=host))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self._look()
            except OutliveError as error:
                _log.info("fence.aftermath_put_off", error=str(error))
            await self._desk.clock.sleep(LOOK_S)

    async def _look(self) -> None:
        leads = self._leads()
        await self._tell_holds()
        await self._end_left(leads)
        for host, how in list(self._dead.items()) if leads else ():
            if self._desk.watching.get(host) is None:
                self._dead.pop(host, None)
            elif self._desk.clock.monotonic() >= self._told.get(host, 0.0) and host in self._dead:
                await self._tell_dead(host, how)
        for host in list(self._back) if leads else ():  # whoever leads may die before it has said so
            self._back.pop(host, None)
            await self._tell_back(host)
        for host in list(self._distrusted) if leads else ():
            if self._asked_to_trust(host):
                await self._trust(host)

    async def _tell_holds(self) -> None:
        for code, (about, message, remedy) in list(self._holds.items()):
            self._said[code] = about
            await self._desk.faults.raise_(code, about, message, remedy=remedy, delta=code.delta)
        for code in [code for code in self._said if code not in self._holds]:
            await self._desk.faults.end(code, self._said.pop(code))

    async def _end_left(self, leads: bool) -> None:
        """What a coordinator held back that has died since, or was started anew."""
        now = self._desk.clock.monotonic()
        if now < self._left_s:
            return
        self._left_s = now + TELL_S
        everybodys = ((FaultCode.STORM_HOLD, CLUSTER), (FaultCode.RATE_HOLD, CLUSTER)) if leads else ()
        mine = (FaultCode.FENCE_WAITS, ObjectRef(kind="Hypervisor", name=self._desk.me))
        for code, about in (*everybodys, mine):
            if code not in self._holds:
                await self._desk.faults.end_left(code, about)

    async def _tell_dead(self, host: str, how: str) -> None:
        if host not in self._told:  # whoever proved it, or was fenced, may not have come to that
            for code in (FaultCode.FENCE_UNCONFIRMED, FaultCode.FENCE_WAITS):
                await self._desk.faults.end(code, ObjectRef(kind="Hypervisor", name=host))
        self._told[host] = self._desk.clock.monotonic() + TELL_S
        await self._desk.faults.raise_(
            FaultCode.HOST_DEAD,
            ObjectRef(kind="Hypervisor", name=host),
            f"{host} is dead ({how})",
            remedy=f"see what happened to {host}; outlive why {host} tells the story",
            delta=FaultCode.HOST_DEAD.delta,
        )

    async def _tell_back(self, host: str) -> None:
        for code in (
            FaultCode.HOST_DEAD,
            FaultCode.FENCE_UNCONFIRMED,
            FaultCode.FENCE_WAITS,
            FaultCode.POWER_UNREACHABLE,
        ):
            await self._desk.faults.end(code, ObjectRef(kind="Hypervisor", name=host))

    def _asked_to_trust(self, host: str) -> bool:
        """Whether the operator has said another word than the one that stood when a kind was distrusted."""
        seen, word = self._desk.watching.get(host), self._desk.rules.settings(host).fencing.trust_again
        return seen is not None and word not in ("", seen.record.trust_word)

    async def _trust(self, host: str) -> None:
        word = (await self._desk.writer.settings(host)).fencing.trust_again
        written = await self._desk.writer.take(
            host,
            TRUST_AGAIN,
            lambda record: TrustView(host=host, record=record, word=word),
            lambda record: not record.distrusted,
        )
        if written.refused is None:
            _log.info("fence.trusted_again", host=host, word=word)
            await self._desk.faults.end(FaultCode.PROOF_CONTRADICTED, ObjectRef(kind="Hypervisor", name=host))
