"""What users and operators do: they write wishes into the store, as the command line does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from outlive.base.errors import AlreadyExists, BadInput, NotFound, Refused
from outlive.node import operator
from outlive.node.fencing.attestation import lost_memberships
from outlive.resources import Cluster, Hypervisor, Membership, ObjectMeta, R, VirtualMachine
from outlive.resources.vms import Request
from outlive.simulation.setup import vm_of
from outlive.simulation.spec import VmSpec
from outlive.simulation.verbs.arguments import (
    FOR,
    HOST,
    HOSTS,
    SOME_HOSTS,
    TEXT,
    VM,
    Argument,
    Arguments,
    Kind,
    hosts_in,
    text,
    texts,
    verb,
)
from outlive.store.access import compare_and_swap

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

_replace = msgspec.structs.replace


async def change_spec(world: World, kind: type[R], name: str, change: Callable[[Any], Any]) -> None:
    """Change the spec of an object that is there."""

    def changed(found: Any) -> Any:
        if found is None:
            raise NotFound(f"there is no {kind.kind()} {name}", remedy="name one that is there")
        return _replace(found, spec=change(found.spec))

    await compare_and_swap(world.store, kind, name, changed, clock=world.clock, half="spec")


@verb(
    "request",
    "a user asks: {details}",
    {
        "vm": VM,
        "verb": Argument(
            Kind.CHOICE,
            True,
            ("start", "stop", "shutdown", "restart", "disable", "migrate", "unmigrate", "move"),
        ),
        "target": Argument(Kind.HOST),
        "force": Argument(Kind.FLAG),
    },
)
async def request(world: World, given: Arguments) -> None:
    """A user asks for something."""
    made = Request(
        id=f"request-{len(world.history.events)}",
        verb=given["verb"],
        target=text(given, "target"),
        force=bool(given.get("force", False)),
    )
    power = {"start": "running", "restart": "running", "stop": "stopped", "shutdown": "stopped"}.get(made.verb)

    def asked(spec: Any) -> Any:
        return _replace(spec, request=made, **({"power_state": power} if power else {}))

    await change_spec(world, VirtualMachine, text(given, "vm"), asked)


@verb("move", "somebody moves {vms} to {to}", {"vm": VM, "to": Argument(Kind.HOST), "live": Argument(Kind.FLAG)})
async def move(world: World, given: Arguments) -> None:
    """A user moves a VM, live if asked to."""
    live = bool(given.get("live", True))
    await request(
        world, {"vm": given["vm"], "verb": "migrate" if live else "move", "target": given.get("to", ""), "force": True}
    )


@verb("drain", "somebody empties {who}", {"host": HOST})
async def drain(world: World, given: Arguments) -> None:
    """A host is to be emptied, also one whose daemon does not run."""
    for host in hosts_in(world, given):
        await change_spec(world, Hypervisor, host.name, lambda spec: _replace(spec, drain=True))


@verb("ready", "{who} may take VMs again", {"host": HOST})
async def ready(world: World, given: Arguments) -> None:
    """A host may take VMs again, also one whose daemon does not run."""
    for host in hosts_in(world, given):
        await change_spec(world, Hypervisor, host.name, lambda spec: _replace(spec, drain=False))


@verb(
    "maintenance",
    "somebody announces work, or its end: {details}",
    {"on": Argument(Kind.FLAG, True), "for": FOR, "hosts": SOME_HOSTS, "power": Argument(Kind.FLAG)},
)
async def maintenance(world: World, given: Arguments) -> None:
    """Work is announced for hosts or for everything, or it is over."""
    announce = operator.set_power_maintenance if given.get("power") else operator.set_maintenance
    hosts = texts(given, "hosts")
    await announce(world.store, world.clock, bool(given["on"]), for_s=given.get("for"), hosts=hosts)


@verb("arm", "the guard of {who} is to be armed", {"hosts": HOSTS})
async def arm(world: World, given: Arguments) -> None:
    """Guards are to be armed."""
    for host in hosts_in(world, given):
        await operator.set_armed(world.store, world.clock, host.name, True)


@verb("disarm", "the guard of {who} is to be disarmed", {"hosts": HOSTS})
async def disarm(world: World, given: Arguments) -> None:
    """Guards are to be disarmed."""
    for host in hosts_in(world, given):
        await operator.set_armed(world.store, world.clock, host.name, False)


@verb(
    "confirm-off",
    "{name} says that {who} is off: {reason}",
    {
        "host": HOST,
        "name": TEXT,
        "reason": TEXT,
        "fence": TEXT,
        "looks": Argument(Kind.FLAG),
        "lost": Argument(Kind.FLAG),
    },
)
async def confirm_off(world: World, given: Arguments) -> None:
    """Somebody asserts that a host is off: whether it is or not, or (``looks``) only if it is, or was replaced.

    ``fence``: somebody enters the word for another fence by hand.
    """
    name, reason = text(given, "name", "somebody"), text(given, "reason", "I looked")
    for host in hosts_in(world, given):
        member = world.store.look(Membership, host.name)
        if member is None or given.get("lost"):
            await _confirm_lost(world, host, given, name, reason)
            continue
        if given.get("looks") and host.lives and member.record.machine_id == host.machine.machine_id:
            raise Refused(f"{host.name} is on", remedy="switch it off first")
        if host.lives and host.hypervisor.left():
            world.truth.lied[host.name] = "operator"
        if given.get("fence"):
            word = f"{given['fence']}|{name}|{reason}"
            await _fencing(world, host, lambda one, word=word: _replace(one, operator_proof=word))  # type: ignore[misc]
        else:
            await operator.confirm_off(world.store, world.clock, host.name, name=name, reason=reason)


async def _confirm_lost(world: World, host: SimHost, given: Arguments, name: str, reason: str) -> None:
    """The same of what a lost membership ran: each that entries of VMs name."""
    member = world.store.look(Membership, host.name)
    lost = await lost_memberships(world.store, host.name, but=member.metadata.uid if member is not None else "")
    runs = (member is None and bool(host.hypervisor.left())) or _runs_of(world, host, lost)
    if given.get("looks") and host.lives and (member is None or runs):
        raise Refused(f"{host.name} is on", remedy="switch it off first")
    if host.lives and runs:
        world.truth.lied[host.name] = "operator"
    for uid in sorted(lost) or [""]:
        await operator.confirm_off(world.store, world.clock, host.name, name=name, reason=reason, membership=uid)


def _runs_of(world: World, host: SimHost, lost: Mapping[str, int]) -> bool:
    """Whether the host really runs something that was begun under a lost membership."""
    for vm, domain in host.hypervisor.domains.items():
        found = world.store.look(VirtualMachine, vm)
        for one in found.status.holders if found is not None else ():
            if one.member_uid in lost and (one.hypervisor, one.run_id) == (host.name, domain.run_id):
                return True
    return False


@verb("fence", "an operator condemns {who}", {"host": HOST})
async def fence(world: World, given: Arguments) -> None:
    """Somebody condemns a host, silent or not."""
    for host in hosts_in(world, given):
        await operator.request_fence(world.store, world.clock, host.name, name="somebody", reason="asked for")


@verb("call-off-fence", "an operator calls off that {who} is fenced", {"host": HOST})
async def call_off_fence(world: World, given: Arguments) -> None:
    """The order to fence a host is taken back."""
    for host in hosts_in(world, given):
        await operator.call_off_fence(world.store, world.clock, host.name)


@verb("set-policy", "the policy of fencing changes: {details}", {"policy": Argument(Kind.MAPPING, True)})
async def set_policy(world: World, given: Arguments) -> None:
    """The policy of fencing changes."""
    await _change_policy(world, given, "fencing")


@verb(
    "set-degrading", "what is made of hosts that get slow changes: {details}", {"policy": Argument(Kind.MAPPING, True)}
)
async def set_degrading(world: World, given: Arguments) -> None:
    """What is made of hosts that get slow changes."""
    await _change_policy(world, given, "degrading")


async def _change_policy(world: World, given: Arguments, name: str) -> None:
    def changed(spec: Any) -> Any:
        policy = getattr(spec, name)
        merged = {**msgspec.to_builtins(policy), **given["policy"]}
        try:
            return _replace(spec, **{name: msgspec.convert(merged, type(policy))})
        except msgspec.ValidationError as error:
            raise BadInput(f"policy of {name}: {error}", remedy="see docs/reference/resources.md") from error

    await change_spec(world, Cluster, "default", changed)


@verb("release", "somebody lets fencing go on")
async def release(world: World, given: Arguments) -> None:
    """Somebody lets fencing go on."""
    word = f"released-{len(world.history.events)}"
    await change_spec(
        world, Cluster, "default", lambda spec: _replace(spec, fencing=_replace(spec.fencing, release=word))
    )


@verb("confirm-incarnation", "somebody vouches for the restored store")
async def confirm_incarnation(world: World, given: Arguments) -> None:
    """Somebody vouches for the restored store."""
    incarnation = world.store.incarnation
    await change_spec(world, Cluster, "default", lambda spec: _replace(spec, confirmed_incarnation=incarnation))


@verb(
    "create-vm",
    "somebody creates {vms}",
    {
        "vm": Argument(Kind.TEXT, True),
        "host": Argument(Kind.HOST),
    },
)
async def create_vm(world: World, given: Arguments) -> None:
    """A new VM, on the host that is named or the one with the fewest."""
    taken = [name for host in world.hosts.values() for name in [host.name] * len(host.hypervisor.domains)]
    host = text(given, "host") or min(world.hosts, key=lambda name: (taken.count(name), name))
    wanted = vm_of(VmSpec(name=text(given, "vm"), host=host))
    made = await world.store.create(wanted)
    await world.store.replace_status(_replace(made, status=wanted.status))


@verb("delete-vm", "somebody deletes {vms}", {"vm": VM})
async def delete_vm(world: World, given: Arguments) -> None:
    """A VM goes for good."""
    found = await world.store.get(VirtualMachine, text(given, "vm"))
    await world.store.delete(found.ref)


@verb("delete-membership", "somebody deletes the membership of {who}", {"host": HOST})
async def delete_membership(world: World, given: Arguments) -> None:
    """Somebody deletes what says whether a host lives."""
    for name in texts(given, "hosts", "host"):
        found = await world.store.get(Membership, name)
        await world.store.delete(found.ref)


@verb("delete-host", "somebody deletes {who} from the store", {"host": HOST})
async def delete_host(world: World, given: Arguments) -> None:
    """Somebody deletes all that says that there is such a host."""
    for host in hosts_in(world, given):
        world.withdrawn[host.name] = found = await world.store.get(Hypervisor, host.name)
        await world.store.delete(found.ref)
        if world.store.look(Membership, host.name) is not None:
            await delete_membership(world, {"host": host.name})


@verb("apply-host", "somebody applies the document of {who} again", {"host": HOST})
async def apply_host(world: World, given: Arguments) -> None:
    """Somebody applies the document of the host again."""
    for host in hosts_in(world, given):
        kept = world.withdrawn.get(host.name)  # and again, after a backup that lacks it
        if kept is None:
            raise Refused(f"nobody has deleted {host.name}", remedy="delete-host comes first")
        meta = ObjectMeta(name=host.name, labels=kept.metadata.labels)
        with contextlib.suppress(AlreadyExists):  # a backup that was put back since may have it
            await world.store.create(Hypervisor(metadata=meta, spec=kept.spec))


@verb("accept-machine", "somebody accepts the machine that is now {who}", {"host": HOST})
async def accept_machine(world: World, given: Arguments) -> None:
    """The machine that is there now is the host from now on: its controller's identity is entered, the old one goes."""
    for host in hosts_in(world, given):
        uuid = host.machine.system_uuid if host.spec.bmc != "none" else ""
        await _fencing(world, host, lambda one, uuid=uuid: _replace(one, system_uuid=uuid))  # type: ignore[misc]
        await delete_membership(world, {"host": host.name})


async def _fencing(world: World, host: SimHost, change: Callable[[Any], Any]) -> None:
    await change_spec(world, Hypervisor, host.name, lambda spec: _replace(spec, fencing=change(spec.fencing)))
