"""Duties of the primary coordinator: what only it does, started one after the other, and stopped in reverse order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from outlive.base.deadline import deadline
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.resources import ObjectRef
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import FaultSet

DUTY_S: Final = 10.0
"""How long one duty may take to start or to stop."""

_log = get_logger("node.primary")


class Duty(Protocol):
    """Something that only the primary coordinator does. Both calls may be repeated."""

    name: str

    async def start(self, term: int) -> None:
        """Begin; ``OutliveError`` where that fails."""
        ...

    async def stop(self) -> None:
        """End; ``OutliveError`` where that fails."""
        ...


class PrimaryDuties:
    """Those of one host. One that fails is a fault, and holds up no other."""

    def __init__(self, host: str, duties: Sequence[Duty], faults: FaultSet) -> None:
        self.all = duties
        self._host = host
        self._faults = faults
        self._started: list[Duty] = []
        """In the order in which they were started."""

    @property
    def running(self) -> tuple[str, ...]:
        """Duties that were started and not stopped."""
        return tuple(duty.name for duty in self._started)

    async def start(self, duty: Duty, term: int) -> None:
        """Start one of them."""
        self._started.append(duty)  # also one that fails may have begun, and is stopped
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        try:
            with deadline(DUTY_S):
                await duty.start(term)
        except (OutliveError, OSError) as error:
            why = str(error) or f"no end within {DUTY_S:g} s"
            _log.error("primary.duty_not_started", host=self._host, duty=duty.name, error=why)
            self._faults.activate(FaultCode.PRIMARY_DUTY, subject, what=f"start {duty.name}", why=why)
        else:
            self._faults.clear(FaultCode.PRIMARY_DUTY, subject)

    async def stop(self) -> None:
        """Stop all that were started, the last one first."""
        subject = ObjectRef(kind="Hypervisor", name=self._host)
        while self._started:
            duty = self._started.pop()
            try:
                with deadline(DUTY_S):
                    await duty.stop()
            except (OutliveError, OSError) as error:
                why = str(error) or f"no end within {DUTY_S:g} s"
                _log.error("primary.duty_not_stopped", host=self._host, duty=duty.name, error=why)
                self._faults.activate(FaultCode.PRIMARY_DUTY, subject, what=f"stop {duty.name}", why=why)
