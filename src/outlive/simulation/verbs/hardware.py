"""What happens to machines, networks, BMCs, clocks and disks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from outlive.base import BadInput
from outlive.resources import CPU, MEMORY, Amounts, VirtualMachine, VirtualMachineSpec, size_problems
from outlive.runtime import Duration
from outlive.simulation.hypervisors import DeadDisks
from outlive.simulation.networks import Direction, Segment
from outlive.simulation.spec import Jump
from outlive.simulation.verbs.operations import change_spec
from outlive.simulation.verbs.table import Name, Names, Share, call_after, register_verb

if TYPE_CHECKING:
    from outlive.simulation.hosts import SimHost
    from outlive.simulation.world import World

Rate = Annotated[float, Meta(ge=0.5, le=2)]
Network = Literal["store", "storage", "bmc", "vm"]


@register_verb("power-off", "{who} lose{s} power")
def _power_off(world: World, host: SimHost) -> None:
    host.machine.unplug()


@register_verb("power-on", "{who} get{s} power again")
def _power_on(world: World, host: SimHost) -> None:
    host.machine.plug()


@register_verb("pause-host", "{who} stand{s} still{for}")
def _pause_host(world: World, host: SimHost, for_: Duration | None = None) -> None:
    _pause_for(host, for_, asleep=False)


@register_verb("suspend-host", "{who} sleep{s}{for}")
def _suspend_host(world: World, host: SimHost, for_: Duration | None = None) -> None:
    """Its watchdog does not."""
    _pause_for(host, for_, asleep=True)


def _pause_for(host: SimHost, for_: Duration | None, *, asleep: bool) -> None:
    boot = host.machine.boots
    host.pause(asleep=asleep)
    call_after(for_, lambda: host.go_on() if host.machine.boots == boot else None)


@register_verb("cut", "{who} cannot reach the {network} network any more")
def _cut(
    world: World, network: Network, hosts: Names, direction: Direction = "both", guests: DeadDisks = "stall"
) -> None:
    """``guests``: how those fare whose hosts are cut off from ``storage``."""
    for name in hosts:
        world.dead_disks[name] = guests
        world.networks.cut(Segment(network), name, direction)


@register_verb("heal", "{who} can reach the {network} network again")
def _heal(world: World, network: Network, hosts: Names) -> None:
    for name in hosts:
        world.networks.heal(Segment(network), name)


@register_verb("bmc", "the BMC of {who} is {mode}: {details}")
def _set_bmc(
    world: World,
    host: SimHost,
    mode: Literal["ok", "dead", "lying", "flapping", "slow", "wired-to"],
    to: Name | None = None,
    answer: Duration | None = None,
) -> None:
    """``answer``: how long it takes for each answer from now on."""
    world.wire(host.name, mode, to or "", answer)


@register_verb("clock", "the clock of {who} goes wrong: {details}")
def _set_clock(world: World, host: SimHost, rate: Rate = 0.0, slew: Rate = 0.0, jump: Jump | None = None) -> None:
    """``rate``: of its crystal; ``slew``: of the clocks that a time service steers, against the crystal."""
    if rate:
        host.machine.clock.set_rate(rate)
    if slew:
        host.machine.clock.set_slew(slew)
    if jump is not None:
        host.machine.clock.jump(jump)


@register_verb("watchdog-broken", "the watchdog of {who} is broken")
def _break_watchdog(world: World, host: SimHost) -> None:
    host.machine.watchdog.broken = True
    world.truth.lied[host.name] = "watchdog-broken"


@register_verb("guard-lacks", "the guard of {who} does not find what it needs: {details}")
def _remove_guard_part(world: World, host: SimHost, what: str) -> None:
    """It refuses to be armed, naming that; empty: the host has it again."""
    host.machine.lacks = what


@register_verb("start-fails", "VMs cannot start: {details}")
def _start_fails(
    world: World,
    hosts: Names | None = None,
    vms: Names = ("*",),
    reason: str = "no reason was given",
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 1,
    definition: bool = False,
) -> None:
    """Starts fail: on hosts, of VMs, or of VMs on hosts; ``definition``: because of what the VM's definition says."""
    for host in world.find_hosts(hosts or tuple(world.hosts)):
        for vm in vms:
            host.hypervisor.faults.start_fails[vm] = (reason, times, definition)


@register_verb("use-host", "measured of {who}, besides its VMs: {details}")
def _set_host_use(world: World, host: SimHost, cpu: str | None = None, memory: str | None = None) -> None:
    """What is measured of the machine besides its VMs; without amounts: nothing is measured any more."""
    host.used = _parse_amounts(cpu, memory) or None


@register_verb("use-vm", "measured of {vms}: {details}")
def _set_vm_use(world: World, vms: Names, cpu: str | None = None, memory: str | None = None) -> None:
    """Cores that they keep busy, and memory that they touch, wherever they run; without amounts: as if unsaid."""
    used = _parse_amounts(cpu, memory)
    for vm in vms:
        world.guests_use.pop(vm, None)
        if used:
            world.guests_use[vm] = used


@register_verb("resize-vm", "somebody gives {vms} another size: {details}")
async def _resize_vm(
    world: World, vm: Name, cpu: str | None = None, memory: str | None = None, live: bool = False
) -> None:
    """Its spec says so at once; what runs has that size from its next start, or at once too (``live``)."""
    size = _parse_amounts(cpu, memory)
    for _, problem, remedy in size_problems(size):
        raise BadInput(f"VM {vm} would have {problem}", remedy=remedy)

    def resize_spec(spec: VirtualMachineSpec) -> VirtualMachineSpec:
        return msgspec.structs.replace(spec, resources=Amounts({**spec.resources, **size}))

    await change_spec(world, VirtualMachine, vm, resize_spec)
    for host in world.hosts.values() if live else ():
        domain = host.hypervisor.domains.get(vm)
        if domain is not None:
            domain.cpu_milli = size.get(CPU, domain.cpu_milli)
            domain.memory_bytes = size.get(MEMORY, domain.memory_bytes)


def _parse_amounts(cpu: str | None, memory: str | None) -> Amounts:
    return Amounts.parse({name: text for name, text in ((CPU, cpu), (MEMORY, memory)) if text is not None})


@register_verb("slow-starts", "VMs take long to start on {who}")
def _delay_starts(world: World, host: SimHost, for_: Duration) -> None:
    host.hypervisor.faults.slow_starts_s = for_


@register_verb("slow-cuts", "servers of disks and networks take longer to hear who is shut out: {details}")
def _delay_cuts(world: World, by: Duration) -> None:
    world.disks.spreads_s = (by, by)


@register_verb("slow-disk", "the disks of {who} make everything wait: {details}")
def _stall_disks(world: World, host: SimHost, stall: Share) -> None:
    """``stall``: for such a share of the time."""
    host.machine.disk_stall = stall


@register_verb("laggy-hypervisor", "the hypervisor of {who} takes longer for everything: {details}")
def _lag_hypervisor(world: World, host: SimHost, by: Duration) -> None:
    host.hypervisor.faults.lag_s = by


@register_verb("guest-ignores-shutdown", "the guest of {vms} will not react when asked to end")
def _ignore_shutdown(world: World, vms: Names) -> None:
    for host in world.hosts.values():
        host.hypervisor.faults.ignores_shutdown |= dict.fromkeys(vms, True)


@register_verb("guest-crash", "the guest of {vms} crashes")
def _crash_guests(world: World, vms: Names) -> None:
    for vm in vms:
        for name in world.running_hosts(vm):
            world.hosts[name].hypervisor.crash(vm)


@register_verb("migration-fails", "the next live move from {who} will fail: {details}")
def _fail_migration(world: World, host: SimHost, phase: Literal["precopy", "paused", "sent", "last"]) -> None:
    host.hypervisor.faults.migration = phase


@register_verb("lost-answers", "the hypervisor of {who} does not always answer: {details}")
def _lose_answers(world: World, host: SimHost, rate: Share) -> None:
    """It carries out what it is asked and does not say so, at this rate."""
    host.hypervisor.faults.lost_answers = rate


@register_verb("unkillable", "the process of {vms} hangs in the kernel")
def _make_unkillable(world: World, vms: Names) -> None:
    """No signal ends it."""
    for host in world.hosts.values():
        host.hypervisor.faults.unkillable |= dict.fromkeys(vms, True)


@register_verb("outside-slice", "the guests of {who} run outside the slice that its guard empties")
def _move_outside_slice(world: World, host: SimHost) -> None:
    """Those that run, and those that start."""
    host.hypervisor.move_outside()


@register_verb("lose-track", "the hypervisor service does not know of {vms} any more, which runs on")
def _lose_track(world: World, vms: Names) -> None:
    for host in world.hosts.values():
        for vm in vms:
            host.hypervisor.lose_track(vm)


@register_verb("forget-membership", "somebody deletes what {who} remembers of its membership")
def _forget_membership(world: World, host: SimHost) -> None:
    host.machine.remembered = None


@register_verb("replace-machine", "another machine is put up under the name of {who}")
def _replace_machine(world: World, host: SimHost) -> None:
    host.machine.unplug()
    host.machine.replace_hardware()
    host.machine.plug()


@register_verb("lock-disks", "somebody has the disks of {vms} open")
def _lock_disks(world: World, vms: Names, by: Name = "a-stranger") -> None:
    for disk in _vm_disks(world, vms):
        world.disks.lock(disk, by)


@register_verb("unlock-disks", "the disks of {vms} are closed again")
def _unlock_disks(world: World, vms: Names) -> None:
    for disk in _vm_disks(world, vms):
        world.disks.unlock(disk)


@register_verb("remove-disks", "somebody removes the disks of {vms}")
def _remove_disks(world: World, vms: Names) -> None:
    """A guest that has them open runs on; none starts without them."""
    world.disks.removed.update(_vm_disks(world, vms))


@register_verb("restore-disks", "the disks of {vms} are there again")
def _restore_disks(world: World, vms: Names) -> None:
    world.disks.removed.difference_update(_vm_disks(world, vms))


def _vm_disks(world: World, vms: Names) -> list[str]:
    found = [world.store.find(VirtualMachine, name) for name in vms]
    return [disk for vm in found if vm is not None for disk in vm.spec.disks]
