"""The host from which the role of the primary was taken while it was stopping its duties, until none runs there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from outlive.base import Clock, get_logger
from outlive.node.handover import DUTY_S
from outlive.node.primary_elector import STALL_S
from outlive.resources import Fault, Membership, ObjectRef
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultSet, Periodic, fault_name, log_errors
from outlive.store import Store, read

LOOK_S: Final = 1.0
"""How often it is looked for."""
SETTLE_S: Final = 2.0
"""What it may take beyond the time of its duties."""

_log = get_logger("node.primary")


@dataclass(frozen=True, slots=True)
class Former:
    """A host from which the role was taken while it was stopping its duties."""

    host: str
    since_s: float
    process: tuple[str, int, str]
    """Membership, epoch and nonce, as they were seen first after that."""
    seq: int
    """Its last renewal that was seen before it had had the time to stop all of them."""


def _process_key(member: Membership) -> tuple[str, int, str]:
    return member.metadata.uid, member.record.epoch, member.record.nonce


class FormerPrimary:
    """Its fault, which this host reports. ``duties``: how many it may have to stop."""

    def __init__(self, store: Store, host: str, duties: int, *, faults: FaultSet, clock: Clock) -> None:
        self._store = store
        self._duties = duties
        self._faults = faults
        self._clock = clock
        self._about = ObjectRef(kind="Hypervisor", name=host)
        self._stalled = ""
        """From whom the role was taken; its duties may still be running there."""
        self._former: Former | None = None

    def report(self, host: str) -> None:
        """Tell that this host has not stopped its duties, or removed its addresses, in time."""
        self._stalled, self._former = host, None
        self._faults.activate(FaultCode.PRIMARY_STALLED, self._about, previous=host, limit_s=STALL_S)

    async def follow(self) -> None:
        """End the fault of a host that stalled, also where this host has the role no more."""
        failed = log_errors(_log, "primary.former_not_read", host=self._about.name)
        await Periodic(self._end_fault, LOOK_S, clock=self._clock, wait_first=True, failed=failed).run()

    async def _end_fault(self) -> None:
        if self._stalled and await self._former_has_ended():
            self._stalled = ""
            self._faults.clear(FaultCode.PRIMARY_STALLED, self._about)

    async def _former_has_ended(self) -> bool:
        """Whether no duty runs any more on the host that stalled, or it says itself which one does.

        Its process has gone; or it lives for as long as all of its duties may take to stop, so that it has reported
        whatever did not (``primary-duty``), and there is no such report.
        """
        member, now_s = await read(self._store, Membership, self._stalled), self._clock.monotonic()
        if member is None:
            return True
        first = self._former
        if first is None or first.host != self._stalled:
            first = self._former = Former(self._stalled, now_s, _process_key(member), member.record.seq)
        record = member.record
        if _process_key(member) != first.process or record.dead_through >= record.epoch or record.state == "Released":
            return True
        if now_s < first.since_s + DUTY_S * self._duties + SETTLE_S:
            first = self._former = replace(first, seq=record.seq)
        if record.state != "Held" or record.seq == first.seq:
            return False
        about = ObjectRef(kind="Hypervisor", name=self._stalled)
        fault = await read(self._store, Fault, fault_name(FaultCode.PRIMARY_DUTY, about))
        return fault is None or fault.ended
