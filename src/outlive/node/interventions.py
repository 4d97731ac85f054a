"""What an operator decides for the cluster: each is one write of one field, and says what it means.

As in ``outlive.node.operator``, every function reads fresh and refuses what could not mean what its caller thinks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, Literal, get_args

import msgspec

from outlive.base import Clock, Forbidden, Refused, Usage, as_datetime, format_duration, format_until, join_parts
from outlive.node.membership.pause import waits_for
from outlive.node.operator import ONLY_OURS, change_cluster, change_object, check_words, cluster_spec, member_of
from outlive.resources import (
    CLUSTER,
    HOST_TOKENS,
    Cluster,
    Hypervisor,
    Membership,
    ObjectMeta,
    ShutdownPolicy,
    Token,
)
from outlive.store import Store, compare_and_swap, list_all, read

SHUTDOWN_POLICIES: Final[tuple[ShutdownPolicy, ...]] = tuple(one for one in get_args(ShutdownPolicy) if one)
DEFAULT: Final = "default"
"""Written for a host's policy: that of the cluster; for that of the cluster: ``failover``."""

_replace = msgspec.structs.replace


async def describe_release(store: Store) -> str:
    """What a release of fencing means now, for whom is asked whether it is meant."""
    policy = (await cluster_spec(store)).fencing
    return (
        f"For {format_duration(policy.fences_window_s)} every silent host is condemned, however many are silent, and "
        f"the limit of {policy.fences_limit} failure domains counts anew. Are they dead, and not only cut off?"
    )


async def release_fencing(store: Store, clock: Clock, *, name: str, reason: str) -> str:
    """Let fencing go on after a storm or its limit (``spec.fencing.release`` of the cluster)."""
    check_words(name, reason)
    word = f"{as_datetime(clock.now()).isoformat()}|{name}|{reason}"

    def change(found: Cluster | None) -> Cluster:
        one = found or Cluster(metadata=ObjectMeta(name=CLUSTER))
        return _replace(one, spec=_replace(one.spec, fencing=_replace(one.spec.fencing, release=word)))

    await compare_and_swap(store, Cluster, CLUSTER, change, clock=clock, half="spec")
    return f"fencing goes on: silent hosts are condemned again (spec.fencing.release is {word})"


async def trust_proofs(store: Store, clock: Clock, host: str, kinds: Collection[str]) -> str:
    """Let kinds of proof count again that turned out wrong for a host. ``NotFound``.

    ``Refused`` where they are not exactly those that are distrusted: a host's kinds are trusted again all at once.
    """
    distrusted = (await member_of(store, host)).record.distrusted
    if not distrusted:
        return f"{host} is trusted already"
    if unknown := sorted({*kinds} - {*distrusted}):
        raise Refused(
            f"{join_parts(unknown)} is not distrusted of {host}", remedy=f"these are: {', '.join(sorted(distrusted))}"
        )
    if others := sorted({*distrusted} - {*kinds}):
        raise Refused(
            f"{host} also has {join_parts(others)} distrusted, and all count again at once",
            remedy=f"once all of them are right: outlive host trust {host} {' '.join(sorted(distrusted))}",
        )
    word = as_datetime(clock.now()).isoformat()

    def change(one: Hypervisor) -> Hypervisor:
        return _replace(one, spec=_replace(one.spec, fencing=_replace(one.spec.fencing, trust_again=word)))

    await change_object(store, clock, Hypervisor, host, change)
    return f"{host}: {join_parts(sorted(distrusted))} counts again as a proof (spec.fencing.trustAgain is {word})"


async def missing_hosts(store: Store) -> tuple[str, ...]:
    """The hosts for which a cluster waits whose store was restored; empty where it is not paused."""
    cluster = await read(store, Cluster, CLUSTER)
    if cluster is None or not cluster.paused:
        return ()
    members = {one.name: one.record async for one in list_all(store, Membership, whole=True)}
    ours = [one.name async for one in list_all(store, Hypervisor, whole=True) if one.spec.management == "node"]
    return waits_for(cluster, members, ours)


async def confirm_lost(store: Store, clock: Clock, hosts: Collection[str]) -> str:
    """Confirm that the hosts which have not registered since a restore are lost (``spec.confirmedIncarnation``).

    ``Refused`` where ``hosts`` are not all of these: the pause ends for all at once.
    """
    missing = await missing_hosts(store)
    if not missing:
        return "the cluster is not paused: nothing is to be confirmed"
    if wrong := sorted({*hosts} - {*missing}):
        raise Refused(
            f"the cluster does not wait for {join_parts(wrong)}", remedy=f"it waits for {join_parts(missing)}"
        )
    if others := [one for one in missing if one not in hosts]:
        raise Refused(
            f"the cluster also waits for {join_parts(others)}, and its pause ends for all at once",
            remedy="start their daemons; or name them too, once you know that they run nothing",
        )
    incarnation = ""

    def change(one: Cluster) -> Cluster:
        nonlocal incarnation
        incarnation = one.status.store_incarnation
        return _replace(one, spec=_replace(one.spec, confirmed_incarnation=incarnation))

    await change_object(store, clock, Cluster, CLUSTER, change)
    return f"{join_parts(missing)}: confirmed to be lost in store {incarnation}; the pause is over"


async def set_mode(store: Store, clock: Clock, host: str, mode: Literal["coordinator", "hypervisor"]) -> str:
    """Make a host a coordinator, or no coordinator any more (``spec.mode``). ``NotFound``.

    ``Refused`` where another system manages it, or where no coordinator would be left.
    """
    found = await store.get(Hypervisor, host, fresh=True)
    if found.spec.management != "node":
        raise Refused(f"{host} is managed by {found.spec.management}", remedy=ONLY_OURS)
    if found.spec.mode == mode:
        return f"{host} is a {mode} already"
    others = [one.name async for one in list_all(store, Hypervisor, whole=True) if one.spec.mode == "coordinator"]
    if mode == "hypervisor" and not {*others} - {host}:
        raise Refused(
            f"{host} is the last coordinator: nobody could be condemned any more",
            remedy="outlive host promote another one first",
        )
    await change_object(store, clock, Hypervisor, host, lambda one: _replace(one, spec=_replace(one.spec, mode=mode)))
    restart = f"restart its daemon: systemctl restart outlive-node on {host}"
    token: Token | None = None
    if mode == "coordinator":
        with contextlib.suppress(Forbidden):
            token = await read(store, Token, HOST_TOKENS + host)
    if token is not None and token.role == "host":
        restart = (
            "its token is that of a plain host: outlive token create --join --coordinator "
            f"--host {host}, and outlive node join there; then {restart}"
        )
    return f"{host} is a {mode} from the next start of its daemon; {restart}"


async def set_shutdown_policy(store: Store, clock: Clock, hosts: Collection[str], policy: str) -> str:
    """Say what becomes of the VMs of these hosts when they go down cleanly; no hosts: of the whole cluster's.

    ``Usage`` for what is no policy, ``NotFound``.
    """
    known = (*SHUTDOWN_POLICIES, DEFAULT)
    if policy not in known:
        raise Usage(f"{policy[:40]!r} is no shutdown policy", place="POLICY", remedy=f"write one of {', '.join(known)}")
    wanted: ShutdownPolicy = next((one for one in SHUTDOWN_POLICIES if one == policy), "")
    for host in hosts:
        await store.get(Hypervisor, host)
    for host in hosts:
        await change_object(store, clock, Hypervisor, host, lambda one: _set_policy(one, wanted))
    if hosts:
        return f"{join_parts(sorted(hosts))}: shutdown policy {policy}"

    def change(found: Cluster | None) -> Cluster:
        one = found or Cluster(metadata=ObjectMeta(name=CLUSTER))
        return _replace(one, spec=_replace(one.spec, shutdown_policy=wanted))

    await compare_and_swap(store, Cluster, CLUSTER, change, clock=clock, half="spec")
    return f"the cluster: shutdown policy {policy} for hosts that have none of their own"


def _set_policy(host: Hypervisor, policy: ShutdownPolicy) -> Hypervisor:
    return _replace(host, spec=_replace(host.spec, shutdown_policy=policy))


# Taking high availability out of the whole cluster for planned work, and back: one write, and who has followed it.
#
# The write is a part of ``Cluster.spec``. Fencers, recovery and daemons read it and act by themselves: nobody is
# condemned, nothing is recovered, and each daemon disarms its guard in the order that fencers rely upon
# (``node.membership.guard``): its Membership says so, acknowledged, before the guard stops. A daemon that cannot read
# the store does not follow; so before work on the network the operator reads here which hosts have.

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
        f"the cluster is disarmed ({mode}) {format_until(end)}: no host is condemned, nothing is recovered, "
        f"guards are disarmed; {what}"
    )


async def arm_cluster(store: Store, clock: Clock) -> str:
    """Arm the cluster again. ``Refused`` where nobody disarmed it."""
    if not (await cluster_spec(store)).disarmed:
        raise Refused("the cluster is not disarmed", remedy="outlive arm HOST arms the guard of one host")
    await change_cluster(store, clock, disarmed="", disarmed_since=None, disarmed_until=None)
    return "the cluster is armed: silent hosts are condemned again, and VMs of dead ones are recovered"


def enforcing_hosts(members: Iterable[Membership]) -> list[str]:
    """Hosts that may live and whose Memberships say that their guard enforces, by name."""
    records = {one.name: one.record for one in members}
    over = {
        name
        for name, one in records.items()
        if one.state == "Released" or (one.state == "Revoked" and one.dead_through >= one.epoch)
    }
    return sorted(name for name, one in records.items() if one.guard.armed and name not in over)


async def follow_guards(
    store: Store, clock: Clock, *, armed: bool, report: Callable[[str], None], limit_s: float = FOLLOW_S
) -> tuple[str, ...]:
    """Report each host whose guard is as it should be by now; hosts that did not follow within the limit."""
    began, reported = clock.monotonic(), set[str]()
    while True:
        enforcing = enforcing_hosts([one async for one in list_all(store, Membership, whole=True)])
        wanted = {one.name async for one in list_all(store, Hypervisor, whole=True) if one.spec.fencing.armed}
        disarmed = sorted(wanted - {*enforcing})
        done, left = (enforcing, disarmed) if armed else (disarmed, enforcing)
        for host in done:
            if host not in reported:
                reported.add(host)
                report(f"{host}: its guard {'enforces' if armed else 'is disarmed'}")
        if not left or clock.monotonic() - began >= limit_s:
            return tuple(left)
        await clock.sleep(LOOK_S)
