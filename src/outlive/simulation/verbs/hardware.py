"""What happens to machines, networks, power controllers, clocks and disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.resources import VirtualMachine
from outlive.simulation.networks import Segment
from outlive.simulation.verbs.arguments import (
    DOMAIN,
    FOR,
    HOST,
    HOSTS,
    JUMP,
    NETWORK,
    SOME_HOSTS,
    TEXT,
    VMS,
    WHERE,
    Argument,
    Arguments,
    Kind,
    after,
    hosts_in,
    number,
    text,
    texts,
    verb,
)

if TYPE_CHECKING:
    from outlive.simulation.world import World


@verb("power-off", "{who} lose{s} power", {"hosts": SOME_HOSTS, "domain": DOMAIN}, one_of=WHERE)
async def power_off(world: World, given: Arguments) -> None:
    """The feed fails."""
    for host in hosts_in(world, given):
        host.machine.unplug()


@verb("power-on", "{who} get{s} power again", {"hosts": SOME_HOSTS, "domain": DOMAIN}, one_of=WHERE)
async def power_on(world: World, given: Arguments) -> None:
    """The feed is back, and the machine boots."""
    for host in hosts_in(world, given):
        host.machine.plug()


@verb("pause-host", "{who} stand{s} still{for}", {"hosts": HOSTS, "for": FOR})
async def pause_host(world: World, given: Arguments) -> None:
    """The machine stands still, for a while or to the end."""
    for host in hosts_in(world, given):
        boot = host.machine.boots
        host.pause()
        after(given, lambda host=host, boot=boot: host.go_on() if host.machine.boots == boot else None)  # type: ignore[misc]


@verb(
    "cut",
    "{who} cannot reach the {network} network any more",
    {"network": NETWORK, "hosts": HOSTS, "direction": Argument(Kind.CHOICE, words=("both", "in", "out"))},
)
async def cut(world: World, given: Arguments) -> None:
    """Hosts are off a network."""
    for name in texts(given, "hosts"):
        world.networks.cut(Segment(text(given, "network")), name, given.get("direction", "both"))


@verb("heal", "{who} can reach the {network} network again", {"network": NETWORK, "hosts": HOSTS})
async def heal(world: World, given: Arguments) -> None:
    """They are back."""
    for name in texts(given, "hosts"):
        world.networks.heal(Segment(text(given, "network")), name)


@verb(
    "bmc",
    "the power controller of {who} is {mode} {to}",
    {
        "hosts": HOSTS,
        "mode": Argument(Kind.CHOICE, True, ("ok", "dead", "lying", "slow", "wired-to")),
        "to": Argument(Kind.HOST),
    },
)
async def bmc(world: World, given: Arguments) -> None:
    """Power controllers behave in another way."""
    for host in hosts_in(world, given):
        world.wire(host.name, text(given, "mode"), str(given.get("to", "")))


@verb(
    "clock",
    "the clock of {who} goes wrong: {details}",
    {"hosts": HOSTS, "rate": Argument(Kind.NUMBER, least=0.5, most=2), "jump": JUMP},
)
async def clock(world: World, given: Arguments) -> None:
    """Clocks go wrong."""
    for host in hosts_in(world, given):
        if "rate" in given:
            host.machine.clock.set_rate(number(given, "rate"))
        if "jump" in given:
            host.machine.clock.jump(number(given, "jump"))


@verb("watchdog-broken", "the watchdog of {who} is broken", {"hosts": HOSTS})
async def watchdog_broken(world: World, given: Arguments) -> None:
    """The device never fires."""
    for host in hosts_in(world, given):
        host.machine.watchdog.broken = True
        world.truth.lied[host.name] = "watchdog-broken"


@verb(
    "start-fails",
    "VMs cannot start: {details}",
    {
        "hosts": SOME_HOSTS,
        "vms": Argument(Kind.VMS),
        "reason": TEXT,
        "times": Argument(Kind.NUMBER, least=1, most=1_000_000),
    },
)
async def start_fails(world: World, given: Arguments) -> None:
    """Starts fail: on hosts, of VMs, or of VMs on hosts."""
    chosen = hosts_in(world, given) if "hosts" in given else list(world.hosts.values())
    reason, times = str(given.get("reason", "no reason was given")), int(number(given, "times", 1.0))
    for host in chosen:
        for vm in texts(given, "vms") or ("*",):
            host.hypervisor.faults.start_fails[vm] = (reason, times)


@verb("slow-starts", "VMs take long to start on {who}", {"hosts": HOSTS, "for": Argument(Kind.DURATION, True)})
async def slow_starts(world: World, given: Arguments) -> None:
    """Starts take longer."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.slow_starts_s = number(given, "for")


@verb(
    "slow-disk",
    "the disks of {who} make everything wait: {details}",
    {"hosts": HOSTS, "stall": Argument(Kind.NUMBER, True, least=0, most=1)},
)
async def slow_disk(world: World, given: Arguments) -> None:
    """The disks of these machines make everything wait, for such a share of the time."""
    for host in hosts_in(world, given):
        host.machine.disk_stall = number(given, "stall")


@verb(
    "laggy-hypervisor",
    "the hypervisor of {who} takes longer for everything: {details}",
    {"hosts": HOSTS, "by": Argument(Kind.DURATION, True)},
)
async def laggy_hypervisor(world: World, given: Arguments) -> None:
    """Whatever these hypervisors are asked takes so much longer."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.lag_s = number(given, "by")


@verb("guest-ignores-shutdown", "the guest of {vms} will not react when asked to end", {"vms": VMS})
async def guest_ignores_shutdown(world: World, given: Arguments) -> None:
    """Guests do not react."""
    for host in world.hosts.values():
        for vm in texts(given, "vms"):
            host.hypervisor.faults.ignores_shutdown[vm] = True


@verb("guest-crash", "the guest of {vms} crashes", {"vms": VMS})
async def guest_crash(world: World, given: Arguments) -> None:
    """Guests crash, wherever they run."""
    for vm in texts(given, "vms"):
        for name in world.running(vm):
            world.hosts[name].hypervisor.crash(vm)


@verb(
    "migration-fails",
    "the next live move from {who} will fail: {details}",
    {"hosts": HOSTS, "phase": Argument(Kind.CHOICE, True, ("precopy", "paused", "sent", "last"))},
)
async def migration_fails(world: World, given: Arguments) -> None:
    """The next migration from these hosts fails in the phase that is named."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.migration = text(given, "phase")


@verb(
    "lost-answers",
    "the hypervisor of {who} does not always answer: {details}",
    {"hosts": HOSTS, "rate": Argument(Kind.NUMBER, True, least=0, most=1)},
)
async def lost_answers(world: World, given: Arguments) -> None:
    """Hypervisors carry out what they are told and do not say so, at this rate."""
    for host in hosts_in(world, given):
        host.hypervisor.faults.lost_answers = number(given, "rate")


@verb("unkillable", "the process of {vms} hangs in the kernel", {"vms": VMS})
async def unkillable(world: World, given: Arguments) -> None:
    """The processes of these guests hang in the kernel: no signal ends them."""
    for host in world.hosts.values():
        for vm in texts(given, "vms"):
            host.hypervisor.faults.unkillable[vm] = True


@verb("forget-membership", "somebody deletes what {who} remembers of its membership", {"host": HOST})
async def forget_membership(world: World, given: Arguments) -> None:
    """What the host's disk says of its last membership is deleted."""
    for host in hosts_in(world, given):
        host.machine.remembered = None


@verb("replace-machine", "another machine is put up under the name of {who}", {"host": HOST})
async def replace_machine(world: World, given: Arguments) -> None:
    """Another machine is put up under the name of a host."""
    for host in hosts_in(world, given):
        host.machine.unplug()
        host.machine.become_another()
        host.machine.plug()


STRANGER = "a-stranger"


@verb("lock-disks", "somebody has the disks of {vms} open", {"vms": VMS, "by": TEXT})
async def lock_disks(world: World, given: Arguments) -> None:
    """Somebody who is no host has the disks of these VMs open."""
    for disk in _disks(world, given):
        world.disks.lock(disk, text(given, "by", STRANGER))


@verb("unlock-disks", "the disks of {vms} are closed again", {"vms": VMS})
async def unlock_disks(world: World, given: Arguments) -> None:
    """They are closed again, or the lock is removed by hand."""
    for disk in _disks(world, given):
        world.disks.unlock(disk)


def _disks(world: World, given: Arguments) -> list[str]:
    found = [world.store.look(VirtualMachine, name) for name in texts(given, "vms")]
    return [disk for vm in found if vm is not None for disk in vm.spec.disks]
