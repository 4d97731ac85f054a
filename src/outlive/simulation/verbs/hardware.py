"""What happens to machines, networks, power controllers and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.simulation.networks import Segment
from outlive.simulation.verbs.arguments import Arguments, after, hosts_in, number, text, texts

if TYPE_CHECKING:
    from outlive.simulation.world import World


async def power_off(world: World, given: Arguments) -> None:
    """The feed fails."""
    for host in hosts_in(world, given):
        host.machine.unplug()


async def power_on(world: World, given: Arguments) -> None:
    """The feed is back, and somebody presses the button."""
    for host in hosts_in(world, given):
        host.machine.plug()
        host.machine.switch_on()


async def pause_host(world: World, given: Arguments) -> None:
    """The machine stands still, for a while or until it is told to go on."""
    for host in hosts_in(world, given):
        boot = host.machine.boots
        host.pause()
        after(given, lambda host=host, boot=boot: host.go_on() if host.machine.boots == boot else None)  # type: ignore[misc]


async def resume_host(world: World, given: Arguments) -> None:
    """It goes on."""
    for host in hosts_in(world, given):
        host.go_on()


async def cut(world: World, given: Arguments) -> None:
    """Hosts are off a network."""
    for name in texts(given, "hosts"):
        world.networks.cut(Segment(text(given, "network")), name, given.get("direction", "both"))


async def heal(world: World, given: Arguments) -> None:
    """They are back."""
    for name in texts(given, "hosts"):
        world.networks.heal(Segment(text(given, "network")), name)


async def bmc(world: World, given: Arguments) -> None:
    """Power controllers behave in another way."""
    for host in hosts_in(world, given):
        world.wire(host.name, text(given, "mode"), str(given.get("to", "")))


async def clock(world: World, given: Arguments) -> None:
    """Clocks go wrong."""
    for host in hosts_in(world, given):
        if "rate" in given:
            host.machine.clock.set_rate(number(given, "rate"))
        if "jump" in given:
            host.machine.clock.jump(number(given, "jump"))


async def watchdog_broken(world: World, given: Arguments) -> None:
    """The device never fires."""
    for host in hosts_in(world, given):
        host.machine.watchdog.broken = True
        world.truth.lied[host.name] = "watchdog-broken"


async def start_fails(world: World, given: Arguments) -> None:
    """Starts fail: on hosts, of VMs, or of VMs on hosts."""
    chosen = hosts_in(world, given) if "hosts" in given else list(world.hosts.values())
    reason, times = str(given.get("reason", "no reason was given")), int(number(given, "times", 1.0))
    for host in chosen:
        for vm in texts(given, "vms") or ("*",):
            host.hypervisor.faults.start_fails[vm] = (reason, times)


async def slow_starts(world: World, given: Arguments) -> None:
    """Starts take longer."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.slow_starts_s = number(given, "for")


async def slow_disk(world: World, given: Arguments) -> None:
    """The disks of these machines make everything wait, for such a share of the time."""
    for host in hosts_in(world, given):
        host.machine.disk_stall = number(given, "stall")


async def laggy_hypervisor(world: World, given: Arguments) -> None:
    """Whatever these hypervisors are asked takes so much longer."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.lag_s = number(given, "by")


async def guest_ignores_shutdown(world: World, given: Arguments) -> None:
    """Guests do not react."""
    for host in world.hosts.values():
        for vm in texts(given, "vms"):
            host.hypervisor.faults.ignores_shutdown[vm] = True


async def guest_crash(world: World, given: Arguments) -> None:
    """Guests crash, wherever they run."""
    for vm in texts(given, "vms"):
        for name in world.running(vm):
            world.hosts[name].hypervisor.crash(vm)


async def migration_fails(world: World, given: Arguments) -> None:
    """The next migration from these hosts fails in the phase that is named."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.migration = text(given, "phase")


async def lost_answers(world: World, given: Arguments) -> None:
    """Hypervisors carry out what they are told and do not say so, at this rate."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.lost_answers = number(given, "rate")


async def unkillable(world: World, given: Arguments) -> None:
    """The processes of these guests hang in the kernel: no signal ends them."""
    for host in world.hosts.values():
        for vm in texts(given, "vms"):
            host.hypervisor.faults.unkillable[vm] = True


async def forget_membership(world: World, given: Arguments) -> None:
    """What the host's disk says of its last membership is deleted."""
    for host in hosts_in(world, given):
        host.machine.remembered = None


async def replace_machine(world: World, given: Arguments) -> None:
    """Another machine is put up under the name of a host."""
    for host in hosts_in(world, given):
        host.machine.unplug()
        host.machine.become_another()
        host.machine.plug()
        host.machine.switch_on()
