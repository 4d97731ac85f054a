"""Taking high availability out of the whole cluster for planned work, and back: one write, and who has followed it.

The write is a part of ``Cluster.spec``. Fencers, recovery and daemons read it and act by themselves: nobody is
condemned, nothing is recovered, and each daemon disarms its guard in the order that fencers rely upon
(``node.membership.guard``): its Membership says so, acknowledged, before the guard stops. A daemon that cannot read the
store does not follow; so whoever disarms before work on the network looks here who has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import Refused, Usage
from outlive.base.phrases import until
from outlive.node.operator import change_cluster, cluster_spec
from outlive.resources import Hypervisor, MemberRecord, Membership
from outlive.store import Store, list_all

FOLLOW_S: Final = 60.0
"""How long is waited for the guards; a daemon reads what is wanted every few seconds."""
LOOK_S: Final = 1.0
"""How often is looked."""


async def disarm_cluster(
    store: Store, clock: Clock, mode: Literal["freeze", "ignore"], *, for_s: float | None = None
) -> str:
    """Disarm the cluster; the same again changes mode and end. ``Usage`` for a time that is over already."""
    if for_s is not None and for_s <= 0:
        raise Usage("the cluster would be armed again at once", place="--until", remedy="name a time to come")
    now = clock.now()
    spec = await cluster_spec(store)
    since = spec.disarmed_since if spec.disarmed_mode(now) else None
    end = as_datetime(now + for_s) if for_s is not None else None
    await change_cluster(store, clock, disarmed=mode, disarmed_since=since or as_datetime(now), disarmed_until=end)
    what = "VMs stay as they are, requests are refused" if mode == "freeze" else "requests are carried out"
    return (
        f"the cluster is disarmed ({mode}) {until(end)}: no host is condemned, nothing is recovered, "
        f"guards are disarmed; {what}"
    )


async def arm_cluster(store: Store, clock: Clock) -> str:
    """Arm the cluster again. ``Refused`` where nobody disarmed it."""
    if not (await cluster_spec(store)).disarmed:
        raise Refused("the cluster is not disarmed", remedy="outlive arm HOST arms the guard of one host")
    await change_cluster(store, clock, disarmed="", disarmed_since=None, disarmed_until=None)
    return "the cluster is armed: silent hosts are condemned again, and VMs of dead ones are recovered"


class Guards(msgspec.Struct, frozen=True, kw_only=True):
    """Of all hosts whose guard is to be armed, or is, by their Memberships."""

    enforcing: tuple[str, ...] = ()
    disarmed: tuple[str, ...] = ()


def enforcing_hosts(members: Iterable[Membership]) -> list[str]:
    """Hosts that may live and whose Memberships say that their guard enforces, by name."""
    records = {one.name: one.record for one in members}
    return sorted(name for name, one in records.items() if one.guard.armed and _may_live(one))


def _may_live(record: MemberRecord) -> bool:
    return record.state != "Released" and not (record.state == "Revoked" and record.dead_through >= record.epoch)


async def guards(store: Store) -> Guards:
    """Whose guards enforce now, and whose do not although an operator wants them to."""
    members = [one async for one in list_all(store, Membership, whole=True)]
    armed = {one.name async for one in list_all(store, Hypervisor, whole=True) if one.spec.fencing.armed}
    enforcing = enforcing_hosts(members)
    return Guards(enforcing=tuple(enforcing), disarmed=tuple(sorted(armed - {*enforcing})))


async def follow_guards(
    store: Store, clock: Clock, *, armed: bool, report: Callable[[str], None], limit_s: float = FOLLOW_S
) -> tuple[str, ...]:
    """Report each host whose guard is as it should be by now; hosts that did not follow within the limit."""
    began, reported = clock.monotonic(), set[str]()
    while True:
        now = await guards(store)
        done, left = (now.enforcing, now.disarmed) if armed else (now.disarmed, now.enforcing)
        for host in done:
            if host not in reported:
                reported.add(host)
                report(f"{host}: its guard {'enforces' if armed else 'is disarmed'}")
        if not left or clock.monotonic() - began >= limit_s:
            return left
        await clock.sleep(LOOK_S)
