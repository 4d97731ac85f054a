"""What maintenance is on, and what it hid: hosts that would have been condemned meanwhile, with time and reason."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from outlive.base.clock import Clock, as_datetime, as_instant
from outlive.base.errors import NotFound
from outlive.base.wording import listing
from outlive.resources import Cluster, ClusterSpec, Hypervisor
from outlive.resources.maintenance import cluster_maintenance, host_maintenance, power_maintenance
from outlive.store import Store, list_all

RECENT_S: Final = 24 * 3600.0
"""Entries that are told; older ones stay in ``status.spared`` of the host."""
NAMED: Final = 5
"""Hosts that a sentence names."""
NOTHING: Final = "in the last 24 hours nobody would have been condemned but for maintenance"


async def maintenance_status(store: Store, clock: Clock) -> str:
    """What is in maintenance, until when, and what it hid."""
    now, lines = clock.now(), list[str]()
    spec = await cluster_spec(store)
    if cluster_maintenance(spec, now):
        lines.append(f"all hosts: in maintenance {until(spec.maintenance_until)}")
    async for host in list_all(store, Hypervisor):
        fencing = host.spec.fencing
        if host_maintenance(fencing, now):
            lines.append(f"{host.name}: in maintenance {until(fencing.maintenance_until)}")
        if power_maintenance(fencing, now):
            lines.append(f"{host.name}: its power controller in maintenance {until(fencing.power_maintenance_until)}")
    return "\n".join([*(lines or ["nothing is in maintenance"]), await hidden(store, clock)])


async def hidden(store: Store, clock: Clock, hosts: tuple[str, ...] = ()) -> str:
    """Who would have been condemned in the last 24 hours, of these hosts or of all; oldest first."""
    since = as_datetime(clock.now() - RECENT_S)
    found = [
        (as_instant(one.at), host.name, one)
        async for host in list_all(store, Hypervisor)
        if not hosts or host.name in hosts
        for one in host.status.spared
        if one.at >= since
    ]
    found.sort(key=lambda entry: entry[:2])
    told = [
        f"{one.at:%Y-%m-%d %H:%M:%S} UTC: {host} would have been condemned but for {one.under}: {one.why}"
        for _, host, one in found
    ]
    return "\n".join(told) if told else NOTHING


async def cluster_spec(store: Store) -> ClusterSpec:
    """Of ``Cluster/default``; as it comes where nobody has made it yet."""
    try:
        return (await store.get(Cluster, "default", fresh=True)).spec
    except NotFound:
        return ClusterSpec()


async def goes_on(store: Store, clock: Clock, hosts: tuple[str, ...] = ()) -> str:
    """What to add where maintenance of these hosts, or that of all, ends: what of it is still on; often nothing."""
    now, said = clock.now(), list[str]()
    if hosts:
        concerned, spec = [await store.get(Hypervisor, name) for name in hosts], await cluster_spec(store)
        if cluster_maintenance(spec, now):
            said.append(f"that of all hosts is on {until(spec.maintenance_until)}")
    else:
        concerned = [one async for one in list_all(store, Hypervisor)]
        if alone := sorted(one.name for one in concerned if host_maintenance(one.spec.fencing, now)):
            named = listing(alone, most=NAMED)
            said.append(f"{named} {'is' if len(alone) == 1 else 'are'} still in maintenance by name")
    if powers := sorted(one.name for one in concerned if power_maintenance(one.spec.fencing, now)):
        said.append(f"the power controllers of {listing(powers, most=NAMED)} still get no command, see --power")
    return f"; but {listing(said)}" if said else ""


async def guards_go_on(store: Store, hosts: tuple[str, ...] = ()) -> str:
    """What to add where guards of these hosts, or of any, are armed: a guard knows nothing of maintenance."""
    found = [one.name async for one in list_all(store, Hypervisor) if one.spec.fencing.armed]
    armed = sorted([name for name in found if not hosts or name in hosts])
    if not armed:
        return ""
    named = f"{listing(armed, most=NAMED)} {'is' if len(armed) == 1 else 'are'}"
    return (
        f"\n{named} armed all the same: without acknowledged renewals the VMs there are killed; "
        f"outlive disarm first where the work may cut off the store"
    )


def until(moment: datetime | None) -> str:
    """Until when, in words."""
    return f"until {moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "until somebody ends it"
