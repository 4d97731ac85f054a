"""What users, operators and customers do: requests in the store, as the command line writes them, and commitments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from outlive.base import AlreadyExists, BadInput, NotFound, OutliveError, Random, Refused, SeededIds, Unavailable
from outlive.commitments import GENERAL_PIPELINE
from outlive.node import arm_cluster, disarm_cluster, operator, request_primary
from outlive.node.fencing import is_missing, lost_memberships
from outlive.node.vm import deletion_of
from outlive.placement import Intent, PlacementRequest, image_properties
from outlive.resources import Cluster, Hypervisor, Membership, ObjectMeta, R, RequestVerb, VirtualMachine
from outlive.runtime import Duration
from outlive.simulation.limes import WantedCommitment
from outlive.simulation.process import go
from outlive.simulation.setup import vm_of
from outlive.simulation.spec import VmSpec
from outlive.simulation.stores import ADMINISTRATOR, set_author
from outlive.simulation.verbs.table import Name, Names, register_verb
from outlive.store import compare_and_swap

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

_replace = msgspec.structs.replace
ANSWER_S: Final = 10.0
"""How long somebody waits for a host."""


async def change_spec(world: World, kind: type[R], name: str, change: Callable[[Any], Any]) -> None:
    """Change the spec of an object that is there."""

    def apply_change(found: Any) -> Any:
        if found is None:
            raise NotFound(f"there is no {kind.kind()} {name}", remedy="name one that is there")
        return _replace(found, spec=change(found.spec))

    await compare_and_swap(world.store, kind, name, apply_change, clock=world.clock, half="spec")


@register_verb("request", "a user asks: {details}")
async def _request(world: World, vm: Name, verb: RequestVerb, target: Name | None = None, force: bool = False) -> None:
    """What the verbs of ``outlive vm`` write; what these refuse at once is told."""
    ids = SeededIds(Random(len(world.history.events)))
    try:
        await operator.request_vm(world.store, world.clock, ids, vm, verb, target=target or "", force=force)
    except Refused as error:
        world.history.add("vm", vm, f"{verb} of {vm} is refused: {error.message}", loud=True)


@register_verb("protect", "somebody takes {vms} back into protection")
async def _protect(world: World, vm: Name, hold: bool = False) -> None:
    await operator.set_protected(world.store, world.clock, vm, True, hold=hold)


@register_verb("unprotect", "somebody takes {vms} out of protection: {details}")
async def _unprotect(world: World, vm: Name, reason: str = "") -> None:
    await operator.set_protected(world.store, world.clock, vm, False, reason=reason)


@register_verb("move", "somebody moves {vms} to {to}")
async def _move(world: World, vm: Name, to: Name | None = None, live: bool = True) -> None:
    await _request(world, vm, "migrate" if live else "move", target=to, force=True)


@register_verb("drain", "somebody empties {who}")
async def _drain(world: World, host: SimHost) -> None:
    """Also where its daemon does not run."""
    await change_spec(world, Hypervisor, host.name, lambda spec: _replace(spec, drain=True))


@register_verb("ready", "{who} is to be schedulable again")
async def _end_drain(world: World, host: SimHost) -> None:
    """Also where its daemon does not run."""
    await change_spec(world, Hypervisor, host.name, lambda spec: _replace(spec, drain=False))


@register_verb("primary", "{who} is to be the primary coordinator")
async def _request_primary(world: World, host: SimHost) -> None:
    await request_primary(world.store, world.clock, f"request-{len(world.history.events)}", "primary", host.name)


@register_verb("secondary", "{who} is to give up the role of the primary coordinator")
async def _request_secondary(world: World, host: SimHost) -> None:
    await request_primary(world.store, world.clock, f"request-{len(world.history.events)}", "secondary", host.name)


@register_verb("hang-duty", "what {who} does as the primary coordinator does not end")
async def _hang_duty(world: World, host: SimHost, on: bool = True) -> None:
    (world.hung_duties.add if on else world.hung_duties.discard)(host.name)


@register_verb("maintenance", "somebody announces work, or its end: {details}")
async def _set_maintenance(
    world: World, on: bool, for_: Duration | None = None, hosts: Names | None = None, power: bool = False
) -> None:
    announce = operator.set_power_maintenance if power else operator.set_maintenance
    await announce(world.store, world.clock, on, for_s=for_, hosts=hosts or ())


@register_verb("arm", "the guard of {who} is to be armed")
async def _arm(world: World, host: SimHost) -> None:
    await operator.set_armed(world.store, world.clock, host.name, True)


@register_verb("disarm", "the guard of {who} is to be disarmed")
async def _disarm(world: World, host: SimHost) -> None:
    await operator.set_armed(world.store, world.clock, host.name, False)


@register_verb("disarm-cluster", "somebody disarms the cluster: {details}")
async def _disarm_cluster(
    world: World, mode: Literal["freeze", "ignore"] = "freeze", for_: Duration | None = None
) -> None:
    await disarm_cluster(world.store, world.clock, mode, for_s=for_)


@register_verb("arm-cluster", "somebody arms the cluster again")
async def _arm_cluster(world: World) -> None:
    await arm_cluster(world.store, world.clock)


@register_verb("confirm-off", "{name} says that {who} is off: {reason}")
async def _confirm_off(
    world: World,
    host: SimHost,
    name: str = "somebody",
    reason: str = "I looked",
    fence: str = "",
    looks: bool = False,
    lost: bool = False,
) -> None:
    """Whether it is off or not, or (``looks``) only if it is, or was replaced.

    ``fence``: somebody enters the confirmation of another fence by hand.
    """
    member = world.store.find(Membership, host.name)
    if member is None or lost:
        await _confirm_lost(world, host, looks, name, reason)
        return
    if looks and host.lives and member.record.machine_id == host.machine.machine_id:
        raise Refused(f"{host.name} is on", remedy="switch it off first")
    if host.lives and host.hypervisor.count_guests():
        world.truth.lied[host.name] = "operator"
    if fence:
        await _change_fencing(world, host, operator_proof=f"{fence}|{name}|{reason}")
    else:
        await operator.confirm_off(world.store, world.clock, host.name, name=name, reason=reason)


async def _confirm_lost(world: World, host: SimHost, looks: bool, name: str, reason: str) -> None:
    """The same of what a lost membership ran: each that entries of VMs name, or all that the host ran where it also ran
    what the store did not know."""
    member = world.store.find(Membership, host.name)
    lost = await lost_memberships(world.store, host.name, but=member.metadata.uid if member is not None else "")
    runs = (member is None and bool(host.hypervisor.count_guests())) or _runs_of(world, host, lost)
    if looks and host.lives and (member is None or runs):
        raise Refused(f"{host.name} is on", remedy="switch it off first")
    if host.lives and runs:
        world.truth.lied[host.name] = "operator"
    whole = member is None and await is_missing(world.store, host.name)
    for uid in ([] if whole else sorted(lost)) or [""]:
        await operator.confirm_off(world.store, world.clock, host.name, name=name, reason=reason, membership=uid)


def _runs_of(world: World, host: SimHost, lost: Mapping[str, int]) -> bool:
    """Whether the host really runs something that was begun under a lost membership."""
    for vm, domain in host.hypervisor.domains.items():
        found = world.store.find(VirtualMachine, vm)
        for one in found.status.holders if found is not None else ():
            if one.member_uid in lost and (one.hypervisor, one.run_id) == (host.name, domain.run_id):
                return True
    return False


@register_verb("fence", "an operator condemns {who}")
async def _fence(world: World, host: SimHost) -> None:
    """Silent or not."""
    await operator.request_fence(world.store, world.clock, host.name, name="somebody", reason="asked for")


@register_verb("call-off-fence", "an operator calls off that {who} is fenced")
async def _call_off_fence(world: World, host: SimHost) -> None:
    await operator.call_off_fence(world.store, world.clock, host.name)


@register_verb("set-policy", "the policy of fencing changes: {details}")
async def _set_policy(world: World, policy: dict[str, Any]) -> None:
    await _change_policy(world, policy, "fencing")


@register_verb("set-degrading", "what is made of hosts that get slow changes: {details}")
async def _set_degrading(world: World, policy: dict[str, Any]) -> None:
    await _change_policy(world, policy, "degrading")


async def _change_policy(world: World, policy: dict[str, Any], name: str) -> None:
    def apply_policy(spec: Any) -> Any:
        now = getattr(spec, name)
        try:
            return _replace(spec, **{name: msgspec.convert({**msgspec.to_builtins(now), **policy}, type(now))})
        except msgspec.ValidationError as error:
            raise BadInput(f"policy of {name}: {error}", remedy="see docs/reference/resources.md") from error

    await change_spec(world, Cluster, "default", apply_policy)


@register_verb("release", "somebody lets fencing go on")
async def _release(world: World) -> None:
    word = f"released-{len(world.history.events)}"
    await change_spec(
        world, Cluster, "default", lambda spec: _replace(spec, fencing=_replace(spec.fencing, release=word))
    )


@register_verb("confirm-incarnation", "somebody confirms the restored store")
async def _confirm_incarnation(world: World) -> None:
    incarnation = world.store.incarnation
    await change_spec(world, Cluster, "default", lambda spec: _replace(spec, confirmed_incarnation=incarnation))


CREATE_AGAIN_S: Final = 1.0
"""How often somebody tries to create a VM whose name is taken by one that is being deleted."""


@register_verb("create-vm", "somebody creates {vms}")
async def _create_vm(world: World, vm: Name, host: Name | None = None, disks: Names | None = None) -> None:
    """On the host that is named, or the one with the fewest VMs; again and again while its name is not free yet."""
    fewest = min(world.hosts.values(), key=lambda one: (len(one.hypervisor.domains), one.name))
    wanted = VmSpec(name=vm, host=host or fewest.name, disks=disks)
    found = world.store.find(VirtualMachine, vm)
    if found is None or not found.deleting:
        await enter_vm(world, wanted)
        return
    world.history.add("vm", vm, f"{vm} is not created: {deletion_of(found).text}", loud=True)
    world.start_task(_create_once_free(world, wanted), name=f"create {vm}")


async def _create_once_free(world: World, wanted: VmSpec) -> None:
    while (found := world.store.find(VirtualMachine, wanted.name)) is not None and found.deleting:
        await world.clock.sleep(CREATE_AGAIN_S)
    with contextlib.suppress(AlreadyExists):  # somebody else was faster
        await enter_vm(world, wanted)


async def enter_vm(world: World, vm: VmSpec) -> None:
    """Another VM, assigned to its host."""
    wanted = vm_of(vm, world.spec)
    with set_author(ADMINISTRATOR):  # where it is is recovery's to say
        made = await world.store.create(wanted)
        await world.store.replace_status(_replace(made, status=wanted.status))


@register_verb("delete-vm", "somebody deletes {vms}")
async def _delete_vm(world: World, vm: Name) -> None:
    found = await world.store.get(VirtualMachine, vm)
    await world.store.delete(found.ref)


@register_verb("delete-membership", "somebody deletes the membership of {who}")
async def _delete_membership(world: World, host: SimHost) -> None:
    found = await world.store.get(Membership, host.name)
    with set_author(ADMINISTRATOR):
        await world.store.delete(found.ref)


@register_verb("delete-host", "somebody deletes {who} from the store")
async def _delete_host(world: World, host: SimHost) -> None:
    """With its membership."""
    world.withdrawn[host.name] = found = await world.store.get(Hypervisor, host.name)
    await world.store.delete(found.ref)
    if world.store.find(Membership, host.name) is not None:
        await _delete_membership(world, host)


@register_verb("apply-host", "somebody applies the document of {who} again")
async def _apply_host(world: World, host: SimHost) -> None:
    kept = world.withdrawn.get(host.name)  # and again, after a backup that lacks it
    if kept is None:
        raise Refused(f"nobody has deleted {host.name}", remedy="delete-host comes first")
    meta = ObjectMeta(name=host.name, labels=kept.metadata.labels)
    # a backup that was put back since may have it; and it names a BMC
    with contextlib.suppress(AlreadyExists), set_author(ADMINISTRATOR):
        await world.store.create(Hypervisor(metadata=meta, spec=kept.spec))


@register_verb("accept-machine", "somebody accepts the machine that is now {who}")
async def _accept_machine(world: World, host: SimHost) -> None:
    """Its BMC's identity is entered, and the membership of the old machine goes."""
    await _change_fencing(world, host, system_uuid=host.machine.system_uuid if host.spec.bmc != "none" else "")
    await _delete_membership(world, host)


async def _change_fencing(world: World, host: SimHost, **changes: str) -> None:
    await change_spec(
        world, Hypervisor, host.name, lambda spec: _replace(spec, fencing=_replace(spec.fencing, **changes))
    )


@register_verb("change-commitments", "Limes asks for changes: {details}")
def _change_commitments(
    world: World, commitments: Annotated[tuple[WantedCommitment, ...], Meta(min_length=1)], zone: Name = "a"
) -> None:
    world.limes.send(zone, commitments)


@register_verb("place-vm", "somebody starts {vms} where placement says")
def _place_vm(world: World, vm: Name, flavor: Name, project: Name, zone: Name = "a") -> None:
    """Asks the controller that leads; nothing happens where none answers or no host has room."""
    go(
        _place_and_start(world, VmSpec(name=vm, host="", flavor=flavor, project=project, zone=zone)),
        name=f"{vm} is placed",
    )


async def _place_and_start(world: World, vm: VmSpec) -> None:
    service, made = world.leading_service(), vm_of(vm, world.spec)
    request = PlacementRequest(
        resource_id=vm.name,
        project=vm.project,
        zone=vm.zone,
        need=made.spec.resources,
        flavor_name=vm.flavor,
        extra_specs=made.spec.extra_specs,
        image_properties=image_properties("QEMU"),
        intent=Intent.CREATE,
        pipeline=GENERAL_PIPELINE,
    )
    try:
        if service is None:
            raise Unavailable("no controller leads")
        ranking = await service.ask(
            lambda role: role.role.placement.rank(request),  # type: ignore[attr-defined]
            name=f"{vm.name} is placed",
            limit_s=ANSWER_S,
        )
        if ranking.target is None:
            raise Refused("no host has room for it")
        await enter_vm(world, _replace(vm, host=ranking.target))
    except OutliveError as error:
        world.history.add("fault", vm.name, f"{vm.name} is not placed: {error.message}", loud=True)
