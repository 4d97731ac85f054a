"""What an operator asks of hosts and VMs: each is one write of a spec, and answers with a sentence.

The write states what is wanted; daemons and fencers act on it in their own time and by the rules of the safety
protocol. Every function reads fresh, changes one field, and refuses what could not mean what its caller thinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeVar

import msgspec

from outlive.base import Clock, Ids, InUse, NotFound, Refused, Usage, as_datetime, as_instant, format_until, join_parts
from outlive.node.fencing.attestation import attest, is_missing, lost_memberships
from outlive.node.fencing.policy import ProfileInput, fence_order, profile_of, validate_profile
from outlive.node.fencing.proofs import PROVE_OPERATOR, OperatorView
from outlive.node.membership.join import is_nobodys
from outlive.node.requests import NodeRequestCode, NodeRequestInput, RequestedNode, node_request
from outlive.node.vm.states import deletion_of
from outlive.resources import (
    CLUSTER,
    DOMAIN_LABEL_PREFIX,
    Cluster,
    ClusterSpec,
    Hypervisor,
    Membership,
    ObjectMeta,
    Request,
    RequestVerb,
    Resource,
    VirtualMachine,
    replace_definition,
)
from outlive.store import Selector, Store, compare_and_swap, list_all, read

WORDS_LIMIT: Final = 500
"""Characters of a name or a reason."""
RECENT_S: Final = 24 * 3600.0
"""How far back ``list_spared`` looks; older entries stay in ``status.spared`` of the host."""
NAMED: Final = 5
"""Hosts that a sentence names."""
NOTHING: Final = "in the last 24 hours nobody would have been condemned but for maintenance"
ONLY_OURS: Final = "only hosts with our daemon are fenced by us"

_replace = msgspec.structs.replace
K = TypeVar("K", bound=Resource)


# Fences.


async def request_fence(store: Store, clock: Clock, host: str, *, name: str, reason: str) -> str:
    """Ask for a live host to be fenced; a coordinator does it by the usual rules. ``NotFound``, ``InUse``.

    ``Refused`` where no other host is a coordinator: nobody would be left to prove that this one is dead.
    """
    check_words(name, reason)
    member = await member_of(store, host)
    record = member.record
    if record.state == "Released":
        raise InUse(f"{host} runs nothing and is not watched", remedy="there is nothing to fence")
    if record.state == "Revoked":
        return f"{host} is condemned already: fence {record.fence.id}, {record.fence.reason}"
    others = [one.name async for one in list_all(store, Hypervisor) if one.spec.mode == "coordinator"]
    if not {*others} - {host}:
        raise Refused(
            f"no host other than {host} is a coordinator: nobody would be left to prove it dead",
            remedy=f"outlive host promote makes another one a coordinator; or empty {host} "
            f"(outlive drain {host}) and switch it off",
        )
    order = f"{record.epoch}@{member.metadata.uid}|{name}|{reason}"
    await _change_fencing(store, clock, host, requested=order)
    return f"{host} will be fenced in epoch {record.epoch}; outlive why {host} shows how far it is"


async def call_off_fence(store: Store, clock: Clock, host: str) -> str:
    """Retract the order to fence a host. What is proven stays proven. ``NotFound``."""
    member = await member_of(store, host)
    record = member.record
    text = (await store.get(Hypervisor, host, fresh=True)).spec.fencing.requested
    ordered = fence_order(text, member.metadata.uid)
    if ordered is None or ordered[0] != record.epoch:
        return f"nobody asks to have {host} fenced as it is now, in epoch {record.epoch}"

    def call_off(one: Hypervisor) -> Hypervisor:
        return _set_fencing(one, requested="") if one.spec.fencing.requested == text else one

    if (await change_object(store, clock, Hypervisor, host, call_off)).spec.fencing.requested:
        return f"somebody has asked anew to have {host} fenced; outlive why {host} shows who, and why"
    if record.dead_through >= record.epoch:
        return f"{host} is proven dead already; it comes back once it is switched on"
    return f"{host} comes back by itself if it is not off by now; outlive why {host} shows its state"


async def confirm_off(store: Store, clock: Clock, host: str, *, name: str, reason: str, membership: str = "") -> str:
    """Assert that a condemned host is off. It becomes the proof of its fence, with name and reason.

    Where its Membership is lost, or ``membership`` names a lost one by uid, the assertion is about what that one ran
    (``node.fencing.attestation``). ``Refused`` where the host is not condemned: an assertion is about one fence,
    and never starts one.
    """
    check_words(name, reason)
    member = await read(store, Membership, host)
    if member is None or is_nobodys(member.record) or membership not in ("", member.metadata.uid):
        return await attest(store, clock, host, membership, name=name, reason=reason)
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
            else f"outlive fence {host} --reason ... condemns it first",
        )
    if record.dead_through >= record.fence.epoch:
        return f"{host} is proven dead already: {record.proof.evidence if record.proof else ''}"
    order = f"{record.fence.id}|{name}|{reason}"
    await _change_fencing(store, clock, host, operator_proof=order)
    return f"recorded for fence {record.fence.id}: {name} says that {host} is off"


async def find_host(store: Store, host: str) -> None:
    """``NotFound`` where there is no such host, ``Refused`` where others manage it, before anybody is asked about it.

    A lost one has left entries.
    """
    if await lost_memberships(store, host) or await is_missing(store, host):
        return
    managed_by = (await store.get(Hypervisor, host)).spec.management
    if managed_by != "node" and await read(store, Membership, host) is None:
        raise Refused(f"{host} is managed by {managed_by}", remedy=ONLY_OURS)


def check_words(name: str, reason: str) -> None:
    """``Usage`` for a name or a reason that is none: each is one line without ``|``."""
    for what, text in (("name", name), ("reason", reason)):
        if not text.strip() or "|" in text or len(text) > WORDS_LIMIT or not text.isprintable():
            raise Usage(
                f"{text[:80]!r} is no {what}", remedy=f"write one line of at most {WORDS_LIMIT} characters without |"
            )


async def member_of(store: Store, host: str) -> Membership:
    """The membership of a host. ``NotFound`` where there is no such host, or it has none."""
    member = await read(store, Membership, host)
    if member is None:
        await store.get(Hypervisor, host)
        raise NotFound(f"host {host} has no membership", remedy=ONLY_OURS)
    return member


# Maintenance.


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
    """The BMCs of these hosts get no command while it is on; fencing goes on without them."""
    if not hosts:
        raise Usage("nobody says whose BMCs", place="--power", remedy="name hosts, or add --domain")
    end = as_datetime(clock.now() + for_s) if on and for_s is not None else None
    await _change_fencing(store, clock, *hosts, power_maintenance=on, power_maintenance_until=end)
    names = ", ".join(hosts)
    if on:
        return f"{names}: BMCs get no command {format_until(end)}; hosts are still condemned"
    return f"{names}: BMCs are used again"


async def set_maintenance(
    store: Store, clock: Clock, on: bool, *, for_s: float | None = None, hosts: tuple[str, ...] = ()
) -> str:
    """Nobody, or none of these hosts, is condemned while it is on. The same again is fine."""
    end = as_datetime(clock.now() + for_s) if on and for_s is not None else None
    if hosts:
        await _change_fencing(store, clock, *hosts, maintenance=on, maintenance_until=end)
    else:
        await change_cluster(store, clock, maintenance=on, maintenance_until=end)
    names = ", ".join(hosts)
    if not on:
        return (f"{names}: maintenance is off" if hosts else "maintenance is off") + await goes_on(store, clock, hosts)
    message = (
        f"{names}: not condemned {format_until(end)}"
        if hosts
        else f"maintenance is on {format_until(end)}: no host is condemned"
    )
    found = [one.name async for one in list_all(store, Hypervisor) if one.spec.fencing.armed]
    armed = sorted([name for name in found if not hosts or name in hosts])
    if not armed:
        return message
    named = f"{join_parts(armed, most=NAMED)} {'is' if len(armed) == 1 else 'are'}"
    return (  # a guard knows nothing of maintenance
        f"{message}\n{named} armed all the same: without acknowledged renewals the VMs there are killed; "
        f"outlive disarm first where the work may cut off the store"
    )


async def maintenance_status(store: Store, clock: Clock) -> str:
    """What is in maintenance, until when, and what it hid."""
    now, lines = clock.now(), list[str]()
    spec = await cluster_spec(store)
    if spec.is_in_maintenance(now):
        lines.append(f"all hosts: in maintenance {format_until(spec.maintenance_until)}")
    async for host in list_all(store, Hypervisor):
        fencing = host.spec.fencing
        if fencing.is_in_maintenance(now):
            lines.append(f"{host.name}: in maintenance {format_until(fencing.maintenance_until)}")
        if fencing.power_in_maintenance(now):
            lines.append(f"{host.name}: its BMC in maintenance {format_until(fencing.power_maintenance_until)}")
    return "\n".join([*(lines or ["nothing is in maintenance"]), await list_spared(store, clock)])


async def list_spared(store: Store, clock: Clock, hosts: tuple[str, ...] = ()) -> str:
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
    message = [
        f"{one.at:%Y-%m-%d %H:%M:%S} UTC: {host} would have been condemned but for {one.under}: {one.why}"
        for _, host, one in found
    ]
    return "\n".join(message) if message else NOTHING


async def cluster_spec(store: Store) -> ClusterSpec:
    """Of ``Cluster/default``; as it comes where nobody has made it yet."""
    found = await read(store, Cluster, CLUSTER)
    return found.spec if found is not None else ClusterSpec()


async def goes_on(store: Store, clock: Clock, hosts: tuple[str, ...] = ()) -> str:
    """What to add where maintenance of these hosts, or that of all, ends: what of it is still on; often nothing."""
    now, said = clock.now(), list[str]()
    if hosts:
        concerned, spec = [await store.get(Hypervisor, name) for name in hosts], await cluster_spec(store)
        if spec.is_in_maintenance(now):
            said.append(f"that of all hosts is on {format_until(spec.maintenance_until)}")
    else:
        concerned = [one async for one in list_all(store, Hypervisor)]
        if alone := sorted(one.name for one in concerned if one.spec.fencing.is_in_maintenance(now)):
            named = join_parts(alone, most=NAMED)
            said.append(f"{named} {'is' if len(alone) == 1 else 'are'} still in maintenance by name")
    if powers := sorted(one.name for one in concerned if one.spec.fencing.power_in_maintenance(now)):
        said.append(f"the BMCs of {join_parts(powers, most=NAMED)} still get no command, see --power")
    return f"; but {join_parts(said)}" if said else ""


# Draining and arming.


async def set_drain(store: Store, clock: Clock, host: str, drain: bool) -> str:
    """Ask for a host to be emptied, or to take VMs again. Asked again while it happens, nothing changes."""
    found = await store.get(Hypervisor, host)
    if found.spec.management != "node":
        remedy = "empty it there; outlive whatif drain says where to" if drain else "let it take VMs there"
        raise Refused(f"{host} is managed by {found.spec.management}", remedy=remedy)
    await _refuse_frozen(store, clock)
    state = found.status.domain_state or "ready"  # what is wanted and not done yet counts as its state
    if found.spec.drain and state in ("ready", "unflush"):
        state = "flush"
    elif not found.spec.drain and state in ("flush", "flushed"):
        state = "unflush"
    member = await read(store, Membership, host)
    node = RequestedNode(
        name=host,
        mode=found.spec.mode,
        daemon_state="run" if member is not None and member.record.state == "Held" else "stop",
        router_state="",
        domain_state=state,
    )
    answer = node_request(NodeRequestInput(request="flush" if drain else "ready", node=node))
    if not answer.ok:
        raise Refused(
            f"the daemon of {host} does not run, so nobody would do it",
            remedy=f"start it; outlive why {host} says more",
        )
    if answer.code is NodeRequestCode.ALREADY:
        return f"{host} is empty already" if drain else f"{host} is schedulable already"
    await change_object(store, clock, Hypervisor, host, lambda one: _replace(one, spec=_replace(one.spec, drain=drain)))
    return f"{host} is to be emptied" if drain else f"{host} is to be schedulable again"


async def is_embedded(store: Store) -> bool:
    """Whether the store is away whenever one server is."""
    if not store.embedded:
        return False
    cluster = await read(store, Cluster, CLUSTER)
    return cluster is None or not cluster.status.replicated


async def refuse_arming(store: Store, host: str, *, accept_single_store: bool = False) -> None:
    """``Refused`` with a timing that would empty the host for nothing, and, unless that is accepted, on an embedded
    store: it is no quorum."""
    found = await store.get(Hypervisor, host, fresh=True)
    if await is_embedded(store) and not accept_single_store:
        raise Refused(
            f"{host} is not armed: this store is embedded in one server, and its outage would empty every armed host",
            remedy="use a replicated store, or give --accept-single-store if you take that upon you",
        )
    profile = profile_of((await cluster_spec(store)).fencing, found.spec.fencing, armed=True)
    if errors := validate_profile(ProfileInput(profile=profile)).errors:
        raise Refused(
            f"{host} is not armed: its timing is unsound ({', '.join(errors)})",
            remedy="change spec.fencing.timings of Cluster/default; outlive decide profile.validate says what can work",
        )


async def set_armed(store: Store, clock: Clock, host: str, armed: bool, *, accept_single_store: bool = False) -> str:
    """Ask for a host's guard to be armed or disarmed."""
    if armed:
        await refuse_arming(store, host, accept_single_store=accept_single_store)
    elif not (await store.get(Hypervisor, host, fresh=True)).spec.fencing.armed:
        member = await read(store, Membership, host)
        if member is None or not member.record.guard.armed:  # as its daemon said last
            return f"{host} is not armed"
    await _change_fencing(store, clock, host, armed=armed)
    if armed:
        return (
            f"{host} will be armed: without acknowledged renewals its VMs are killed, also when only the store is away"
        )
    return f"{host} will be disarmed"


# Requests for a VM.


class AskedVm(msgspec.Struct, frozen=True):
    """A request as it was written, and the sentence that says so."""

    request: Request
    text: str


async def request_vm(
    store: Store,
    clock: Clock,
    ids: Ids,
    vm: str,
    verb: RequestVerb,
    *,
    target: str = "",
    force: bool = False,
    force_live: bool = False,
    device: str = "",
    definition: tuple[str, str] | None = None,
) -> AskedVm:
    """Request it, under a new id. ``NotFound``; ``Usage`` for a host where none belongs.

    ``definition``: as it is, and as it is to be from the same write on; ``Refused`` where it is another by now.

    ``Refused`` where nobody would answer: the VM is another system's, or is to go to a host of such a one. A start also
    says that it is to run from now on (``spec.powerState``).
    """
    await check_request(store, clock, vm, verb, target)
    found = await store.get(VirtualMachine, vm, fresh=True)
    where = found.status.assigned
    if where is None:
        await check_hosts_of_ours(store, vm)
    if where is None and found.status.source:
        why = f"{vm} is assigned to no host, and {found.status.source} has brought it, so nobody would answer"
        raise Refused(why, remedy=f"outlive describe vm {vm} shows its state")
    host = await read(store, Hypervisor, where.hypervisor) if where is not None else None
    if host is not None:  # its document may be lost; its daemon answers all the same
        _check_ours(host, vm)
    request = Request(id=ids.new_uuid(), verb=verb, target=target, force=force, force_live=force_live, device=device)

    def set_request(one: VirtualMachine) -> VirtualMachine:
        refuse_deleted(one)
        one = replace_definition(one, *definition) if definition is not None else one
        power = "running" if verb == "start" else one.spec.power_state
        return _replace(one, spec=_replace(one.spec, request=request, power_state=power))

    await change_object(store, clock, VirtualMachine, vm, set_request)
    who = where.hypervisor if where is not None else "recovery"
    return AskedVm(request, f"{vm}: {verb} is requested as {request.id}; {who} answers (outlive describe vm {vm})")


def refuse_deleted(vm: VirtualMachine) -> None:
    """``Refused`` for a VM that is being deleted: nothing of it changes any more."""
    if vm.deleting:
        said = deletion_of(vm)
        raise Refused(said.text, remedy=said.remedy)


async def check_hosts_of_ours(store: Store, vm: str) -> None:
    """``Refused`` where no host has our daemon: recovery answers no request then for a VM of no host."""
    async for host in list_all(store, Hypervisor):
        if host.spec.management == "node":
            return
    why = f"{vm} is assigned to no host, and no host has our daemon, so nobody would answer"
    raise Refused(why, remedy="let a host join first: outlive node join")


async def check_request(store: Store, clock: Clock, vm: str, verb: RequestVerb, target: str = "") -> None:
    """Raises what ``request_vm`` does for whatever does not depend on where the VM is."""
    if target and verb not in ("migrate", "move"):
        raise Usage(f"{verb} goes to no other host", place="--to", remedy="leave it out")
    if target:
        _check_ours(await store.get(Hypervisor, target), vm)
    await _refuse_frozen(store, clock)


async def _refuse_frozen(store: Store, clock: Clock) -> None:
    """``Refused`` while the cluster is disarmed so that VMs stay as they are."""
    spec = await cluster_spec(store)
    if spec.disarmed_mode(clock.now()) == "freeze":
        said = f"the cluster is disarmed (freeze) {format_until(spec.disarmed_until)}: VMs and hosts stay as they are"
        raise Refused(said, remedy="outlive arm --cluster, once the work is done")


async def set_protected(
    store: Store, clock: Clock, vm: str, protected: bool, *, hold: bool = False, reason: str = ""
) -> str:
    """Take a VM out of protection, or back. ``NotFound``.

    ``hold``: once its host died, a protected VM stays down until somebody asks for its start.
    """
    if len(reason) > WORDS_LIMIT:
        raise Usage(f"{len(reason)} characters", place="--reason", remedy=f"write at most {WORDS_LIMIT}")
    mode: Literal["", "hold", "ignore"] = ("hold" if hold else "") if protected else "ignore"

    def set_mode(one: VirtualMachine) -> VirtualMachine:
        policy = _replace(one.spec.recovery, mode=mode, reason=reason)
        return _replace(one, spec=_replace(one.spec, recovery=policy))

    await change_object(store, clock, VirtualMachine, vm, set_mode)
    if not protected:
        return f"{vm} is out of protection: it loses its slots, and nobody restarts it elsewhere (outlive protect {vm})"
    then = f"it stays down until outlive vm start {vm}" if hold else "it restarts elsewhere"
    return f"{vm} is protected: it gets slots, and if its host dies {then}"


def _check_ours(host: Hypervisor, vm: str) -> None:
    if host.spec.management != "node":
        why = f"{host.name} is managed by {host.spec.management}, so nobody here would answer"
        raise Refused(why, remedy=f"ask for {vm} there")


# Writes.


def _set_fencing(host: Hypervisor, **changes: object) -> Hypervisor:
    return _replace(host, spec=_replace(host.spec, fencing=_replace(host.spec.fencing, **changes)))


async def _change_fencing(store: Store, clock: Clock, *hosts: str, **changes: object) -> None:
    """Change these settings of all the hosts; of none where one is missing."""
    for host in hosts:
        await store.get(Hypervisor, host)
    for host in hosts:
        await change_object(store, clock, Hypervisor, host, lambda one: _set_fencing(one, **changes))


async def change_object(store: Store, clock: Clock, kind: type[K], name: str, change: Callable[[K], K]) -> K:
    """The object after the change of its spec. ``NotFound`` where there is none."""

    def apply_change(found: K | None) -> K:
        if found is None:
            raise NotFound(f"there is no {kind.kind()} {name!r}", remedy=f"see outlive get {kind.info.plural}")
        return change(found)

    after = await compare_and_swap(store, kind, name, apply_change, clock=clock, half="spec")
    assert after is not None, "a missing object raises"
    return after


async def change_cluster(store: Store, clock: Clock, **changes: object) -> None:
    """Change the spec of ``Cluster/default``, which is made where nobody has made it yet."""

    def set_fields(found: Cluster | None) -> Cluster:
        one = found or Cluster(metadata=ObjectMeta(name=CLUSTER))
        return _replace(one, spec=_replace(one.spec, **changes))

    await compare_and_swap(store, Cluster, CLUSTER, set_fields, clock=clock, half="spec")
