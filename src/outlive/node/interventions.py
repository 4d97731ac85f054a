"""What an operator decides when the cluster waits for people: each is one write of one field, and says what it means.

As in ``outlive.node.operator``, every function reads fresh and refuses what could not mean what its caller thinks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, get_args

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.duration import format_duration
from outlive.base.errors import Forbidden, Refused, Usage
from outlive.base.phrases import listing
from outlive.node.membership.pause import waits_for
from outlive.node.operator import ONLY_OURS, change_object, check_words, cluster_spec, member_of
from outlive.resources import Cluster, Hypervisor, Membership, ObjectMeta, Token
from outlive.resources.cluster import CLUSTER
from outlive.resources.hosts import ShutdownPolicy
from outlive.resources.tokens import HOST_TOKENS
from outlive.store import Store, list_all
from outlive.store.access import compare_and_swap, read

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

    def released(found: Cluster | None) -> Cluster:
        one = found or Cluster(metadata=ObjectMeta(name=CLUSTER))
        return _replace(one, spec=_replace(one.spec, fencing=_replace(one.spec.fencing, release=word)))

    await compare_and_swap(store, Cluster, CLUSTER, released, clock=clock, half="spec")
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
            f"{listing(unknown)} is not distrusted of {host}", remedy=f"these are: {', '.join(sorted(distrusted))}"
        )
    if others := sorted({*distrusted} - {*kinds}):
        raise Refused(
            f"{host} also has {listing(others)} distrusted, and all count again at once",
            remedy=f"once all of them are right: outlive host trust {host} {' '.join(sorted(distrusted))}",
        )
    word = as_datetime(clock.now()).isoformat()

    def trusted(one: Hypervisor) -> Hypervisor:
        return _replace(one, spec=_replace(one.spec, fencing=_replace(one.spec.fencing, trust_again=word)))

    await change_object(store, clock, Hypervisor, host, trusted)
    return f"{host}: {listing(sorted(distrusted))} counts again as a proof (spec.fencing.trustAgain is {word})"


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
        raise Refused(f"the cluster does not wait for {listing(wrong)}", remedy=f"it waits for {listing(missing)}")
    if others := [one for one in missing if one not in hosts]:
        raise Refused(
            f"the cluster also waits for {listing(others)}, and its pause ends for all at once",
            remedy="start their daemons; or name them too, once you know that they run nothing",
        )
    incarnation = ""

    def confirmed(one: Cluster) -> Cluster:
        nonlocal incarnation
        incarnation = one.status.store_incarnation
        return _replace(one, spec=_replace(one.spec, confirmed_incarnation=incarnation))

    await change_object(store, clock, Cluster, CLUSTER, confirmed)
    return f"{listing(missing)}: confirmed to be lost in store {incarnation}; the pause is over"


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
    if mode == "coordinator" and await _has_plain_token(store, host):
        restart = (
            "its token is that of a plain host: outlive token create --join --coordinator "
            f"--host {host}, and outlive node join there; then {restart}"
        )
    return f"{host} is a {mode} from the next start of its daemon; {restart}"


async def _has_plain_token(store: Store, host: str) -> bool:
    """Whether its token gives it no access to secrets; ``False`` where that may not be read."""
    try:
        token = await read(store, Token, HOST_TOKENS + host)
    except Forbidden:
        return False
    return token is not None and token.role == "host"


async def set_shutdown_policy(store: Store, clock: Clock, hosts: Collection[str], policy: str) -> str:
    """Say what becomes of the VMs of these hosts when they go down in good order; no hosts: of the whole cluster's.

    ``Usage`` for what is no policy, ``NotFound``.
    """
    known = (*SHUTDOWN_POLICIES, DEFAULT)
    if policy not in known:
        raise Usage(f"{policy[:40]!r} is no shutdown policy", place="POLICY", remedy=f"write one of {', '.join(known)}")
    wanted: ShutdownPolicy = next((one for one in SHUTDOWN_POLICIES if one == policy), "")
    for host in hosts:
        await store.get(Hypervisor, host)
    for host in hosts:
        await change_object(store, clock, Hypervisor, host, lambda one: _with_policy(one, wanted))
    if hosts:
        return f"{listing(sorted(hosts))}: shutdown policy {policy}"

    def changed(found: Cluster | None) -> Cluster:
        one = found or Cluster(metadata=ObjectMeta(name=CLUSTER))
        return _replace(one, spec=_replace(one.spec, shutdown_policy=wanted))

    await compare_and_swap(store, Cluster, CLUSTER, changed, clock=clock, half="spec")
    return f"the cluster: shutdown policy {policy} for hosts that have none of their own"


def _with_policy(host: Hypervisor, policy: ShutdownPolicy) -> Hypervisor:
    return _replace(host, spec=_replace(host.spec, shutdown_policy=policy))
