"""The candidate for the role of the primary coordinator, and what a holder does about a request.

The coordinator that a hand-over is meant for takes the role at once, others after the silence of an election, the
leaver last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from outlive.base import Clock, Ids
from outlive.node.handover import begin_handover
from outlive.resources import Election, ElectionRecord, PrimaryRequest
from outlive.runtime import RENEW_S, SILENCE_S, Elector
from outlive.store import Store

ROLE: Final = "primary"
STALL_S: Final = 15.0
"""How long a leaver may stop its duties before the role is taken from it."""


@dataclass(frozen=True, slots=True)
class Next:
    """What a holder does about a request: carry it out, or only note that it is answered."""

    relinquish: bool = False
    to: str = ""


def answer_request(host: str, record: ElectionRecord, request: PrimaryRequest | None) -> Next | None:
    """What the holder ``host`` does now; ``None``: nothing. Each request is answered once."""
    if request is None or request.id == record.answered:
        return None
    if request.verb == "primary":
        return Next() if request.host == host else Next(relinquish=True, to=request.host)
    return Next(relinquish=True) if request.host == host else Next()


def may_take(host: str, record: ElectionRecord, *, silent: bool, stalled: bool) -> bool:
    """Whether a candidate takes the role now. ``silent``: nobody has written for as long as an election allows;
    ``stalled``: the holder has been stopping its duties for longer than it may."""
    if silent:
        return True
    meant = record.to == host or (record.to == "" and record.previous != host)
    return meant and (not record.holder or (stalled and record.phase == "relinquish"))


class PrimaryElector(Elector):
    """A candidate that takes over what is meant for it."""

    def __init__(
        self,
        store: Store,
        host: str,
        *,
        clock: Clock,
        ids: Ids,
        renew_s: float = RENEW_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        super().__init__(store, ROLE, host, clock=clock, ids=ids, renew_s=renew_s, silence_s=silence_s)
        self.withdrawn = False
        """Whether it takes the role no more; one that it has is its own until it gives it back."""
        self.holder = ""
        """Who had the role when this candidate looked last."""
        self._leaving = (0, 0.0)
        """The term whose holder is stopping its duties, and since when this candidate has seen that."""
        self.stalled = ""
        """Who did not stop its duties in time, if the role was taken from it."""
        self.may_stand: Callable[[], bool] = lambda: True
        """Whether this host is fit for the role: one whose membership is not renewed is not."""

    async def run(self) -> None:
        """Be a candidate until cancelled; ``Primary`` gives the role back, once it has stopped its duties."""
        await self._run_loop()

    async def _run_round(self) -> None:
        if not self.withdrawn or self._held is not None:
            await super()._run_round()

    def _may_take(self, current: Election) -> bool:
        record, now = current.record, self._clock.monotonic()
        self.holder = record.holder
        silent = self._is_silent(
            current
        )  # also while this host is not fit, so that the silence does not begin anew then
        if self.withdrawn or not self.may_stand():
            return False
        if record.phase != "relinquish":
            self._leaving = (0, now)
        elif self._leaving[0] != record.term:
            self._leaving = (record.term, now)
        stalled = record.phase == "relinquish" and now - self._leaving[1] >= STALL_S
        self.stalled = record.holder if stalled else ""
        return may_take(self.identity, record, silent=silent, stalled=stalled)

    def _takeover_fields(self, record: ElectionRecord) -> dict[str, object]:
        handover = begin_handover(record, self.identity)
        return {"phase": "takeover", "previous": record.holder or record.previous, "to": "", "handover": handover}
