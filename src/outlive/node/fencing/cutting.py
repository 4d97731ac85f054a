"""Shutting a host out of the disks and networks of the VMs that it holds, and keeping it out.

A cut says nothing of a host that still runs; it says that what runs there reaches nothing. So it has to be read back,
renewed before it ends, and kept until the epoch is proven dead. It is lifted when the host has come back in a later
epoch, and not earlier: until then it is the second line of defence (docs/concepts/safety.md#proofs).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import Final
from weakref import WeakValueDictionary

from outlive.base.errors import NotFound, OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.node.fencing.rules import TAKE_OVER_RESTING_S
from outlive.node.ports.fencing import CutPort, CutReport
from outlive.resources import VirtualMachine
from outlive.store import Store, list_all

CALL_LIMIT_S: Final = 20.0
"""How long one call may take."""
RENEW_PART: Final = 0.4
"""A cut is renewed after this part of the time that it lasts."""
RENEW_S: Final = 60.0
"""How often a cut without an end is looked at."""
AGAIN_S: Final = 10.0
"""When a cut that failed is tried again."""
LEAST_S: Final = 1.0
"""Renewals lie at least so far apart."""
SCOPE_LIMIT_S: Final = 5.0
"""How long the store may take to say what a host holds."""
LEAST_LASTS_S: Final = RENEW_S + TAKE_OVER_RESTING_S + 3 * CALL_LIMIT_S
"""A cut that ends sooner by itself proves nothing: it was renewed up to so long ago when its fencer is stuck, and
another has to find that out and renew it in its place."""

_log = get_logger("fencing.cut")


@dataclass(frozen=True, slots=True)
class CutResult:
    """What is shut out now, or why nothing is."""

    why_not: str = ""
    scope: tuple[str, ...] = ()
    """Of what was ordered, what was read back."""
    written: tuple[str, ...] = ()
    """What was ordered, by an order that was taken."""
    read_back: tuple[str, ...] = ()
    """What was said afterwards to be shut out, ordered now or not."""
    evidence: str = ""
    renew_in_s: float = AGAIN_S
    lasts_s: float = inf
    """How long that is so, from before it was ordered."""


class Cutting:
    """See the module."""

    def __init__(self, port: CutPort, store: Store) -> None:
        self._port = port
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One order for each host at a time: one to shut it out that is late must not follow the one to let it in."""

    async def scope(self, host: str, epoch: int) -> tuple[str, ...]:
        """Disks and ports of every VM that this epoch of the host, or an older one, holds. Errors of the store."""
        found: dict[str, None] = {}
        async for vm in list_all(self._store, VirtualMachine):
            if any(one.hypervisor == host and one.epoch <= epoch for one in vm.status.holders):
                found.update((f"disk:{disk}", None) for disk in vm.spec.disks)
                found.update((f"port:{port}", None) for port in vm.spec.ports)
        return tuple(sorted(found))

    async def cut(self, host: str, epoch: int, kept: tuple[str, ...] = ()) -> CutResult:
        """Shut the host out, or renew that, and read it back. Errors of the store, unless something is to be kept.

        ``kept``: what it is shut out of already, which others may use since, so that nobody's entry says so any more.
        """
        try:
            async with asyncio.timeout(SCOPE_LIMIT_S):
                found = await self.scope(host, epoch)
        except (OutliveError, TimeoutError) as error:
            if not kept:
                raise Unavailable(f"what {host} holds could not be read: {error or 'no answer in time'}") from error
            _log.warning("fence.cut_scope_not_read", host=host, epoch=epoch, error=str(error))
            found = ()
        return await self.renew(host, epoch, tuple(sorted({*found, *kept})))

    async def renew(self, host: str, epoch: int, scope: tuple[str, ...]) -> CutResult:
        """Shut the host out of exactly this, and read it back."""
        if not scope:
            return CutResult(why_not="it holds no VM with a disk or port")
        try:
            async with self._one_order(host), asyncio.timeout(CALL_LIMIT_S):
                await self._port.cut(host, epoch, scope)
                report = await self._port.read_back(host, epoch)
        except TimeoutError:
            return CutResult(why_not=f"no answer in {CALL_LIMIT_S:g} s")
        except OutliveError as error:
            _log.warning("fence.cut_failed", host=host, epoch=epoch, error=str(error))
            return CutResult(why_not=error.message)
        except Exception as error:  # noqa: BLE001 - a driver that breaks for one host must not end all fences
            _log.exception("fence.cut_broke", host=host, epoch=epoch)
            return CutResult(why_not=f"its driver failed with {type(error).__name__}: {error}")
        there = tuple(one for one in scope if one in set(report.scope))
        if not there:
            return CutResult(why_not="nothing was found shut out when it was read back")
        lasts_s = inf if report.expires_in_s is None else report.expires_in_s
        if lasts_s < LEAST_LASTS_S:
            why = f"what shuts it out ends {lasts_s:g} s after it was renewed, and has to last {LEAST_LASTS_S:g} s"
            return CutResult(why_not=why, renew_in_s=_renew_in_s(report))
        return CutResult(
            scope=there,
            written=scope,
            read_back=report.scope,
            evidence=report.evidence,
            renew_in_s=_renew_in_s(report),
            lasts_s=lasts_s,
        )

    async def found(self, host: str, epoch: int) -> tuple[str, ...]:
        """What this epoch of the host, or the one before, is shut out of. ``Unavailable`` where that was not said."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                reports = [await self._port.read_back(host, one) for one in (epoch - 1, epoch) if one > 0]
        except NotFound:
            return ()
        except TimeoutError:
            raise Unavailable(f"what {host} is shut out of was not said in {CALL_LIMIT_S:g} s") from None
        except OutliveError as error:
            raise Unavailable(error.message) from error
        except Exception as error:
            _log.exception("fence.cut_broke", host=host, epoch=epoch)
            raise Unavailable(f"its driver failed with {type(error).__name__}: {error}") from error
        return tuple(sorted({one for report in reports for one in report.scope}))

    async def lift(self, host: str, epoch: int) -> str:
        """Let the host in again that was cut off through this epoch, and no later one; why not, where that failed.

        The order may arrive when the host has come back, was condemned and cut off once more.
        """
        try:
            async with self._one_order(host), asyncio.timeout(CALL_LIMIT_S):
                await self._port.lift(host, epoch)
        except TimeoutError:
            return f"no answer in {CALL_LIMIT_S:g} s"
        except OutliveError as error:
            return error.message
        except Exception as error:  # noqa: BLE001 - as above
            _log.exception("fence.cut_broke", host=host, epoch=epoch)
            return f"its driver failed with {type(error).__name__}: {error}"
        return ""

    def _one_order(self, host: str) -> asyncio.Lock:
        return self._locks.setdefault(host, asyncio.Lock())


def _renew_in_s(report: CutReport) -> float:
    if report.expires_in_s is None:
        return RENEW_S
    return min(RENEW_S, max(LEAST_S, RENEW_PART * report.expires_in_s))
