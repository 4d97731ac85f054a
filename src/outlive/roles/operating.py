"""What an operator asks of hosts: to be fenced, declared off, left alone, emptied, armed. Each is one write of a spec.

The write says what is wanted; daemons and fencers act on it in their own time and by the rules of the safety protocol.
Every function reads fresh, changes one field and swaps, a bounded number of times, and answers with a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, InUse, NotFound, Refused, Usage
from outlive.node.fencing.profile import ProfileInput, profile_of, validate_profile
from outlive.node.fencing.proving import PROVE_OPERATOR, OperatorView
from outlive.node.membership.former import is_nobodys
from outlive.node.orders import asked_for
from outlive.node.requests import NodeRequestCode, NodeRequestInput, RequestedNode, node_request
from outlive.resources import Cluster, FencingSpec, Hypervisor, Membership, ObjectMeta
from outlive.resources.meta import DOMAIN_LABEL_PREFIX, Resource
from outlive.roles.maintaining import cluster_spec, goes_on, guards_go_on, until
from outlive.roles.vouching import lost_memberships, membership_of, missed, vouch
from outlive.store import Selector, Store, list_all

ATTEMPTS: Final = 5
"""Swaps that are tried before a command gives up against other writers."""
WORDS_LIMIT: Final = 500
"""Characters of a name or a reason."""
ONLY_OURS: Final = "only hosts with our daemon are fenced by us"

_replace = msgspec.structs.replace
K = TypeVar("K", bound=Resource)


async def request_fence(store: Store, host: str, *, name: str, reason: str) -> str:
    """Ask for a live host to be fenced; a coordinator does it by the usual rules. ``NotFound``, ``InUse``.

    ``Refused`` where no other host is a coordinator: nobody would be left to prove that this one is dead.
    """
    _check_words(name, reason)
    member = await _member(store, host)
    record = member.record
    if record.state == "Released":
        raise InUse(f"{host} runs nothing and is not watched", remedy="there is nothing to fence")
    if record.state == "Revoked":
        return f"{host} is condemned already: fence {record.fence.id}, {record.fence.reason}"
    others = [one.name async for one in list_all(store, Hypervisor) if one.spec.mode == "coordinator"]
    if not {*others} - {host}:
        raise Refused(
            f"no host other than {host} is a coordinator: nobody would be left to prove it dead",
            remedy=f"set spec.mode of another host to coordinator and restart its daemon; or empty {host} "
            f"(outlive drain {host}) and switch it off",
        )
    wish = f"{record.epoch}@{member.metadata.uid}|{name}|{reason}"
    await _change_fencing(store, host, lambda fencing: _replace(fencing, requested=wish))
    return f"{host} will be fenced in epoch {record.epoch}; outlive why {host} says how far it is"


async def call_off_fence(store: Store, host: str) -> str:
    """Take the order to fence a host back. What is proven stays proven. ``NotFound``."""
    member = await _member(store, host)
    record = member.record
    text = (await store.get(Hypervisor, host, fresh=True)).spec.fencing.requested
    ordered = asked_for(text, member.metadata.uid)
    if ordered is None or ordered[0] != record.epoch:
        return f"nobody asks to have {host} fenced as it is now, in epoch {record.epoch}"
    left = await _change_fencing(
        store, host, lambda fencing: _replace(fencing, requested="") if fencing.requested == text else fencing
    )
    if left.requested:
        return f"somebody has asked anew to have {host} fenced; outlive why {host} says who, and why"
    if record.dead_through >= record.epoch:
        return f"{host} is proven dead already; it comes back once it is switched on"
    return f"{host} comes back by itself if it is not off by now; outlive why {host} says how it stands"


async def confirm_off(store: Store, clock: Clock, host: str, *, name: str, reason: str, membership: str = "") -> str:
    """Assert that a condemned host is off. It becomes the proof of its fence, with name and reason.

    Where its Membership is lost, or ``membership`` names a lost one by uid, the assertion is about what that one ran
    (``outlive.roles.vouching``). ``Refused`` where the host is not condemned: an assertion is about one fence, and
    never starts one.
    """
    _check_words(name, reason)
    member = await membership_of(store, host)
    if member is None or is_nobodys(member.record) or membership not in ("", member.metadata.uid):
        return await vouch(store, clock, host, membership, name=name, reason=reason)
    record = member.record
    view = OperatorView(
        host=host,
        record=record,
        observer=name,
        epoch=record.fence.epoch,
        fence=record.fence.id,
        name=name,
        reason=reason,
    )
    outcome = PROVE_OPERATOR.attempt(view)
    if record.state != "Revoked" or outcome.refused is not None:
        why = outcome.refused.why if outcome.refused is not None and record.state == "Revoked" else ""
        lost = await lost_memberships(store, host, but=member.metadata.uid)
        raise Refused(
            why or f"{host} is not condemned",
            remedy=f"VMs wait for a lost membership of it: say which (--membership {min(lost)})"
            if lost
            else f"outlive fence {host} --reason … condemns it first",
        )
    if record.dead_through >= record.fence.epoch:
        return f"{host} is proven dead already: {record.proof.evidence if record.proof else ''}"
    wish = f"{record.fence.id}|{name}|{reason}"
    await _change_fencing(store, host, lambda fencing: _replace(fencing, operator_proof=wish))
    return f"recorded for fence {record.fence.id}: {name} says that {host} is off"


async def hosts_of_domains(store: Store, domains: tuple[str, ...], *, hosts: tuple[str, ...] = ()) -> tuple[str, ...]:
    """``hosts``, and those that carry the label of one of these failure domains (``rack=r3``) now, each once.

    ``Usage`` for what is no domain, ``NotFound`` for one without hosts.
    """
    found = dict.fromkeys(hosts)
    for domain in domains:
        what, _, which = domain.partition("=")
        if not what or not which:
            raise Usage(f"{domain!r} is no failure domain", place="--domain", remedy="write one such as rack=r3")
        selector = Selector.parse(f"{DOMAIN_LABEL_PREFIX}{what}={which}")
        named = [one.name async for one in list_all(store, Hypervisor, selector=selector)]
        if not named:
            raise NotFound(
                f"no host has the label {DOMAIN_LABEL_PREFIX}{what}={which}",
                remedy="outlive get hypervisors -o wide shows their labels",
            )
        found.update(dict.fromkeys(named))
    return tuple(found)


async def set_power_maintenance(
    store: Store, clock: Clock, on: bool, *, for_s: float | None = None, hosts: tuple[str, ...]
) -> str:
    """The power controllers of these hosts get no command while it is on; fencing goes on without them."""
    if not hosts:
        raise Usage("nobody says whose power controllers", place="--power", remedy="add --host or --domain")
    end: datetime | None = as_datetime(clock.now() + for_s) if on and for_s is not None else None
    for host in hosts:
        await store.get(Hypervisor, host)
    for host in hosts:
        await _change_fencing(
            store, host, lambda fencing: _replace(fencing, power_maintenance=on, power_maintenance_until=end)
        )
    names = ", ".join(hosts)
    if on:
        return f"{names}: power controllers get no command {until(end)}; hosts are still condemned"
    return f"{names}: power controllers are used again"


async def set_maintenance(
    store: Store, clock: Clock, on: bool, *, for_s: float | None = None, hosts: tuple[str, ...] = ()
) -> str:
    """Nobody, or none of these hosts, is condemned while it is on. The same again is fine."""
    end: datetime | None = as_datetime(clock.now() + for_s) if on and for_s is not None else None
    for host in hosts:
        await store.get(Hypervisor, host)
    if not hosts:
        await _change_cluster(store, lambda spec: _replace(spec, maintenance=on, maintenance_until=end))
    for host in hosts:
        await _change_fencing(store, host, lambda fencing: _replace(fencing, maintenance=on, maintenance_until=end))
    names = ", ".join(hosts)
    if not on:
        return (f"{names}: maintenance is off" if hosts else "maintenance is off") + await goes_on(store, clock, hosts)
    told = f"{names}: not condemned {until(end)}" if hosts else f"maintenance is on {until(end)}: no host is condemned"
    return told + await guards_go_on(store, hosts)


async def set_drain(store: Store, host: str, drain: bool) -> str:
    """Ask for a host to be emptied, or to take VMs again. Asked again while it happens, nothing changes."""
    found = await store.get(Hypervisor, host)
    if found.spec.management != "node":
        remedy = "empty it there; outlive whatif drain says where to" if drain else "let it take VMs there"
        raise Refused(f"{host} is managed by {found.spec.management}", remedy=remedy)
    answer = node_request(NodeRequestInput(request="flush" if drain else "ready", node=await _as_asked(store, found)))
    if not answer.ok:
        raise Refused(
            f"the daemon of {host} does not run, so nobody would do it",
            remedy=f"start it; outlive why {host} says more",
        )
    if answer.code is NodeRequestCode.ALREADY:
        return f"{host} is empty already" if drain else f"{host} takes VMs already"
    await _change(store, Hypervisor, host, lambda one: _replace(one, spec=_replace(one.spec, drain=drain)))
    return f"{host} is to be emptied" if drain else f"{host} is to take VMs again"


async def _as_asked(store: Store, host: Hypervisor) -> RequestedNode:
    """The host as requests see it; a wish that it has not followed yet counts as its state."""
    state = host.status.domain_state or "ready"
    if host.spec.drain and state in ("ready", "unflush"):
        state = "flush"
    elif not host.spec.drain and state in ("flush", "flushed"):
        state = "unflush"
    member = await membership_of(store, host.name)
    runs = member is not None and member.record.state == "Held"
    return RequestedNode(
        name=host.name,
        mode=host.spec.mode,
        daemon_state="run" if runs else "stop",
        router_state="",
        domain_state=state,
    )


async def refuse_arming(store: Store, host: str) -> None:
    """``Refused`` on an embedded store, which is no quorum, and with a timing that would empty the host for nothing."""
    found = await store.get(Hypervisor, host, fresh=True)
    if store.embedded:
        raise Refused(
            f"{host} is not armed: this store is embedded in one server, and its outage would empty every armed host",
            remedy="use a replicated store",
        )
    profile = profile_of((await cluster_spec(store)).fencing, found.spec.fencing, armed=True)
    if errors := validate_profile(ProfileInput(profile=profile)).errors:
        raise Refused(
            f"{host} is not armed: its timing is unsound ({', '.join(errors)})",
            remedy="change spec.fencing.timings of Cluster/default; outlive decide profile.validate says what can work",
        )


async def set_armed(store: Store, host: str, armed: bool) -> str:
    """Ask for a host's guard to be armed or disarmed."""
    if armed:
        await refuse_arming(store, host)
    elif not (await store.get(Hypervisor, host, fresh=True)).spec.fencing.armed and not await _is_armed(store, host):
        return f"{host} is not armed"
    await _change_fencing(store, host, lambda fencing: _replace(fencing, armed=armed))
    if armed:
        return (
            f"{host} will be armed: without acknowledged renewals its VMs are killed, also when only the store is away"
        )
    return f"{host} will be disarmed"


async def _is_armed(store: Store, host: str) -> bool:
    """Whether its daemon said last that its guard is armed."""
    member = await membership_of(store, host)
    return member is not None and member.record.guard.armed


async def find_host(store: Store, host: str) -> None:
    """``NotFound`` where there is no such host, ``Refused`` where others manage it, before anybody is asked about it.

    A lost one has left entries.
    """
    if await lost_memberships(store, host) or await missed(store, host):
        return
    managed_by = (await store.get(Hypervisor, host)).spec.management
    if managed_by != "node" and await membership_of(store, host) is None:
        raise Refused(f"{host} is managed by {managed_by}", remedy=ONLY_OURS)


def _check_words(name: str, reason: str) -> None:
    for what, text in (("name", name), ("reason", reason)):
        if not text.strip() or "|" in text or len(text) > WORDS_LIMIT or not text.isprintable():
            raise Usage(
                f"{text[:80]!r} is no {what}", remedy=f"write one line of at most {WORDS_LIMIT} characters without |"
            )


async def _member(store: Store, host: str) -> Membership:
    member = await membership_of(store, host)
    if member is None:
        await store.get(Hypervisor, host)
        raise NotFound(f"host {host} has no membership", remedy=ONLY_OURS)
    return member


async def _change_fencing(store: Store, host: str, change: Callable[[FencingSpec], FencingSpec]) -> FencingSpec:
    """As it is then."""
    changed = await _change(
        store,
        Hypervisor,
        host,
        lambda one: _replace(one, spec=_replace(one.spec, fencing=change(one.spec.fencing))),
    )
    return changed.spec.fencing


async def _change_cluster(store: Store, change: Callable[..., object]) -> None:
    try:
        await store.get(Cluster, "default")
    except NotFound:
        with contextlib.suppress(AlreadyExists):
            await store.create(Cluster(metadata=ObjectMeta(name="default")))
    await _change(store, Cluster, "default", lambda one: _replace(one, spec=change(one.spec)))


async def _change(store: Store, kind: type[K], name: str, change: Callable[[K], K]) -> K:
    for attempt in range(ATTEMPTS):
        found = await store.get(kind, name, fresh=True)
        wanted = change(found)
        if wanted == found:
            return found
        try:
            return await store.replace(wanted)
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
