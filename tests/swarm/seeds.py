"""Seeds: random clusters under random faults, judged at every event, healed, and judged at rest.

A run has three virtual minutes: it starts and settles, faults come, and the last minute is quiet. Then the operator
heals everything, and every VM that should run has ``BUDGET_S`` to run again, or to be down with a reason and a remedy.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from outlive.base import Defect, Random, gather_defects, silence_logging
from outlive.node.fencing import WRITE_LIMIT_S
from outlive.resources import (
    AffinityPolicy,
    AffinityRule,
    DegradingPolicy,
    FencingPolicy,
    PreferredHosts,
    RebalancePolicy,
    RecoveryLimits,
    RecoveryPolicy,
    Timing,
    VirtualMachine,
)
from outlive.runtime import run_virtual
from outlive.simulation import (
    REPORTED_S,
    BmcMode,
    HistoryEvent,
    HostSpec,
    VmSpec,
    World,
    WorldSpec,
    collect_rarely,
    hosts_of,
)
from outlive.simulation.judges import InvariantViolation, check_network, check_runs_or_reason, find_leftover_rows
from tests.swarm.faults.draw import UNTIL_S
from tests.swarm.faults.ensembles import on_ensemble
from tests.swarm.faults.links import with_functions, with_own_networks
from tests.swarm.faults.networks import connected
from tests.swarm.faults.sales import selling
from tests.swarm.faults.schedule import schedule, staying_off
from tests.swarm.operator import Operator, heal

QUIET_UNTIL_S: Final = 180.0
BUDGET_S: Final = 240.0
"""After healing, for every VM to run or to be held."""
REST_S: Final = 12.0
"""Of calm before what holds only at rest is judged."""
SETTLES_S: Final = 30.0
"""How long that judgement waits for a moment in which all that changed has been reported."""
OPERATOR_S: Final = 5.0
"""Time between two looks of the operator while it is quiet."""
AWAITED: Final = "20s"
"""How long VMs wait for those that they start after."""
SPARE_CPU: Final = 6
"""Of each host's cores, that no VM takes at the beginning."""
OBJECTIVES_S: Final = (5.0, 10.0, 30.0, 40.0, 50.0, 120.0)
"""Around what the profiles take by themselves."""
ANSWERS_S: Final = (1.0, 5.0, 10.0, 20.0, 30.0)
"""Of a slow BMC."""
TIGHT_SHARE: Final = 0.4
"""Of the seeds, so many have times of their own."""
GROUPS: Final[tuple[AffinityPolicy, ...]] = ("anti-affinity", "soft-affinity", "soft-anti-affinity")
"""Rules that bind a VM to others."""
TRACE_LINES: Final = 6
"""Of an error that broke a run."""
LIMIT_S: Final = 3600.0
"""Virtual seconds of one run at most."""


class Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one seed came to."""

    seed: int
    violations: tuple[InvariantViolation, ...] = ()
    trace: str = ""
    """Hash of everything that happened."""
    virtual_s: float = 0.0
    error: str = ""
    """Where the run itself broke: an error of the simulation or of the product that no code handled."""

    @property
    def well(self) -> bool:
        """True if nothing was violated and nothing broke."""
        return not self.violations and not self.error


def replay_of(seed: int) -> str:
    """Return the command that runs a seed again."""
    return f"scripts/swarm {seed} {seed} --story"


def world_of(seed: int) -> WorldSpec:
    """Draw the cluster of a seed."""
    random = Random(seed).fork("world")
    count = random.randint(3, 8)
    per_rack = random.choice((0, 1, 2, 2, 3))
    armed_share = random.choice((0.0, 0.0, 0.5, 1.0))
    bmcs: tuple[BmcMode, ...] = random.choice((("ok",), ("ok", "ok", "none"), ("ok", "with-host"), ("none",)))
    coordinators = random.randint(1, min(3, count))
    two_proofs = random.random() < 0.2
    hosts = tuple(
        _host(random, number, per_rack, armed_share, bmcs, coordinators, two_proofs) for number in range(1, count + 1)
    )
    vms = _in_order(Random(seed).fork("order"), _vms(random, hosts))
    vms = _with_objectives(Random(seed).fork("objectives"), vms)
    vms = _with_policies(Random(seed).fork("policies"), vms, hosts)
    hosts = _on_switches(Random(seed).fork("switches"), hosts)
    hosts = _slowly_controlled(Random(seed).fork("controllers"), hosts)
    policy = FencingPolicy(
        storm_fraction=random.choice((0.5, 0.5, 1.0)),
        fences_limit=random.choice((2, 10)),
        fences_window_s=random.choice((60.0, 600.0)),
        power_on_after=random.random() < 0.3,
        profile=random.choice(("", "", "fast")),
        timings=_tight(Random(seed).fork("timings")),
        flap_deaths=Random(seed).fork("flaps").choice((3, 3, 2, 1)),
        quarantine_s=Random(seed).fork("quarantine").choice((86_400.0, 60.0)),
    )
    spec = WorldSpec(
        hosts=hosts,
        vms=vms,
        controllers=random.choice((1, 2, 2, "on-coordinators")),
        policy=policy,
        degrading=_degrading(Random(seed).fork("degrading")),
        shutdown_policy=Random(seed).fork("shutdown").choice(("", "", "failover", "freeze", "migrate", "migrate")),
        recovery=_recovery(Random(seed).fork("recovery")),
        rebalance=_rebalance(Random(seed).fork("rebalance")),
        cuts=random.choice(("none", "none", "disks", "all")),
        latency_s=random.choice((0.0, 0.0, 0.0, 0.002, 0.05)),
        settings={
            "failover": {"flavorFailoverRequirements": {"*": random.choice((1, 1, 2))}},
            "node": {"startAfterLimit": AWAITED},
        },
    )
    spec = connected(Random(seed).fork("networks"), selling(Random(seed).fork("sales"), spec))
    spec = with_own_networks(Random(seed).fork("links"), spec)
    spec = with_functions(Random(seed).fork("functions"), spec)
    return on_ensemble(Random(seed).fork("ensemble"), spec)


def _recovery(random: Random) -> RecoveryLimits:
    """In most seeds something is done about VMs whose disks are dead; in some few hosts may die under one VM."""
    return RecoveryLimits(
        max_host_failures=random.choice((None, None, 0, 1)),
        start_window_s=random.choice((None, 30.0)),
        storage_lost=random.choice(("", "restart", "fence")),
        storage_resume=random.choice(("", "", "", "never")),
    )


def _rebalance(random: Random) -> RebalancePolicy:
    """In some seeds VMs move for balance, sooner and more often than an operator should choose."""
    mode: Literal["off", "auto"] = random.choice(("off", "off", "off", "auto"))
    return RebalancePolicy(mode=mode, threshold=random.choice((0.05, 0.1, 0.2)), pause_s=10.0)


def _degrading(random: Random) -> DegradingPolicy:
    """Settings that act sooner than an operator should choose, so that they matter within the time of a seed."""
    window_s = random.choice((6.0, 10.0, 15.0))
    return DegradingPolicy(
        action=random.choice(("leave",) * 6 + ("tell", "off")),
        window_s=window_s,
        quiet_s=random.choice((window_s, 30.0, 60.0)),
        settle_s=random.choice((0.0, 5.0, 12.0)),
        common_share=random.choice((0.25, 0.5)),
        leaving_share=random.choice((0.0, 0.0, 0.5)),
    )


def _host(
    random: Random,
    number: int,
    per_rack: int,
    armed_share: float,
    bmcs: tuple[BmcMode, ...],
    coordinators: int,
    two_proofs: bool,
) -> HostSpec:
    armed = random.random() < armed_share
    mode: BmcMode = random.choice(bmcs)
    return HostSpec(
        name=f"kvm-{number}",
        rack=f"r{(number - 1) // per_rack + 1}" if per_rack else "",
        armed=armed,
        bmc=mode,
        proofs=2 if two_proofs and armed and mode != "none" else 0,
        mode="coordinator" if number <= coordinators else "hypervisor",
        boot_s=random.uniform(5.0, 40.0),
    )


def _on_switches(random: Random, hosts: tuple[HostSpec, ...]) -> tuple[HostSpec, ...]:
    """In most seeds it is known on which switches hosts hang, of all of them or of most."""
    switches, unknown = random.choice((0, 2, 2, 3)), random.choice((0.0, 0.0, 0.2))
    if not switches:
        return hosts
    return tuple(
        host if random.random() < unknown else replace(host, domains={"switch": f"s{random.randint(1, switches)}"})
        for host in hosts
    )


def _slowly_controlled(random: Random, hosts: tuple[HostSpec, ...]) -> tuple[HostSpec, ...]:
    """In some seeds BMCs of some hosts, or of all, take long for each answer."""
    share = random.choice((0.0, 0.0, 0.3, 1.0))
    if not share:
        return hosts
    return tuple(
        replace(host, bmc_answer_s=random.choice(ANSWERS_S)) if random.random() < share else host for host in hosts
    )


def _tight(random: Random) -> dict[Literal["fast", "steady"], Timing]:
    """In some seeds silence counts sooner than guards act, and guards act as soon as renewals let them."""
    if random.random() >= TIGHT_SHARE:
        return {}
    return {"fast": _timing(random, random.choice((0.5, 1.0))), "steady": _timing(random, random.choice((1.0, 2.0)))}


def _timing(random: Random, renew_s: float) -> Timing:
    return Timing(
        renew_s=renew_s,
        silence_s=renew_s * random.choice((4, 6, 10)),
        throws=random.choice((0, 1, 2)),
        throw_s=random.choice((0.5, 1.0)),
        guard_timeout_s=3 * renew_s + WRITE_LIMIT_S + random.choice((0.0, 1.0, 5.0)),
        watchdog_s=random.choice((3.0, 10.0, 15.0)),
    )


def _with_objectives(random: Random, vms: tuple[VmSpec, ...]) -> tuple[VmSpec, ...]:
    """In most seeds some VMs, or all, are to run again soon."""
    share = random.choice((0.0, 0.2, 0.5, 1.0))
    if not share:
        return vms
    return tuple(
        replace(vm, recovery_time_objective_s=random.choice(OBJECTIVES_S)) if random.random() < share else vm
        for vm in vms
    )


def _with_policies(random: Random, vms: tuple[VmSpec, ...], hosts: tuple[HostSpec, ...]) -> tuple[VmSpec, ...]:
    """In half of the seeds some VMs are held or left alone when their host dies, or are bound to others or to hosts."""
    share = random.choice((0.0, 0.0, 0.1, 0.3))
    if not share:
        return vms
    taken: set[tuple[str, str]] = set()
    """Group and host: no two that are to be apart begin together."""
    made: list[VmSpec] = []
    for vm in vms:
        changes: dict[str, Any] = {}
        if random.random() < share:
            changes["recovery"] = RecoveryPolicy(
                mode=random.choice(("", "restart", "hold", "ignore")),
                max_restarts=random.choice((None, 0, 3)),
                max_relocations=random.choice((None, 0, 1)),
            )
        if random.random() < share:
            group, policy = f"g{random.randint(1, 3)}", random.choice(GROUPS)
            if policy != "anti-affinity" or (group, vm.host) not in taken:
                taken.add((group, vm.host))
                changes["affinity"] = (AffinityRule(group=group, policy=policy),)
        if random.random() < share:
            weights = {host.name: random.randint(1, 10) for host in hosts if random.random() < 0.5}
            changes["preferred_hosts"] = PreferredHosts(weights=weights)
            changes["failback"] = random.choice(("", "never", "planned", "auto"))
        made.append(replace(vm, **changes))
    return tuple(made)


def _vms(random: Random, hosts: tuple[HostSpec, ...]) -> tuple[VmSpec, ...]:
    """As many as drawn, or as there is room for: no host begins with more than it has."""
    left = {host.name: int(host.cpu) - SPARE_CPU for host in hosts}
    made: list[VmSpec] = []
    for number in range(1, random.randint(10, 60) + 1):
        size = random.choice((1, 1, 2, 4))
        fit = [name for name, cpu in left.items() if cpu >= size]
        if not fit:
            break
        host = random.choice(fit)
        left[host] -= size
        made.append(
            VmSpec(
                name=f"vm-{number}",
                host=host,
                cpu=str(size),
                memory=f"{2 * size}Gi",
                priority=random.choice((None, None, 1, 9)),
                network_policy="accept-duplicate" if random.random() < 0.1 else "",
                migration_method=random.choice(("", "", "live", "shutdown")),
            )
        )
    return tuple(made)


def _in_order(random: Random, vms: tuple[VmSpec, ...]) -> tuple[VmSpec, ...]:
    """In half of the seeds some start after others: in chains, in circles, and after VMs that there are not."""
    share = random.choice((0.0, 0.0, 0.2, 0.5))
    made: list[VmSpec] = []
    for vm in vms:
        after: tuple[str, ...] = ()
        if random.random() < share:
            others = [one.name for one in vms if one.name != vm.name]
            after = tuple(dict.fromkeys(random.choice(others) for _ in range(random.choice((1, 1, 2)))))
            after = (*after, "vm-nobody") if random.random() < 0.05 else after
        made.append(msgspec.structs.replace(vm, start_after=after))
    return tuple(made)


def run_seed(seed: int, *, on_event: Callable[[HistoryEvent], None] | None = None) -> Result:
    """Run one seed; ``on_event`` is called with every event as it happens."""
    try:
        with collect_rarely(), silence_logging(), gather_defects() as defects:
            result = run_virtual(_run(seed, on_event), limit_s=LIMIT_S)
        return _with_defects(result, defects)
    except Exception as error:
        return Result(seed=seed, error="".join(traceback.format_exception(error)[-TRACE_LINES:]))


def _with_defects(result: Result, defects: list[Defect]) -> Result:
    """Add a violation for each unforeseen error that a program logged, even if the program went on."""
    found = [
        InvariantViolation(
            invariant="defect",
            at_s=result.virtual_s,
            subject=one.event,
            text=f"{one.error}\n{one.trace}",
            seed=result.seed,
            replay=replay_of(result.seed),
        )
        for one in defects
    ]
    return msgspec.structs.replace(result, violations=(*result.violations, *found)) if found else result


async def _run(seed: int, on_event: Callable[[HistoryEvent], None] | None) -> Result:
    spec = world_of(seed)
    world = World(spec, seed=seed, replay=replay_of(seed))
    if on_event is not None:
        world.history.listen(on_event)
    await world.build()
    await world.start()
    for fault in schedule(Random(seed).fork("faults"), spec):
        await world.clock.sleep(fault.at_s - world.clock.monotonic())
        await world.attempt(fault.verb, fault.arguments)
    await world.clock.sleep(UNTIL_S - world.clock.monotonic())
    await heal(world, but=staying_off(Random(seed).fork("faults").fork("staying-off"), hosts_of(spec)))
    await _rested(world)
    world.judge.judge_rest()
    result = Result(
        seed=seed,
        violations=tuple(world.violations),
        trace=world.history.trace_hash(),
        virtual_s=world.clock.monotonic(),
    )
    await world.stop()
    return result


async def _rested(world: World) -> None:
    """Wait until every VM runs or says why not, and has done so for a while; at most so long as the budget is.

    Then wait until the last changes were reported. Work that began meanwhile, such as a fence that no coordinator could
    carry out before, has its time as well.
    """
    operator = Operator(world)
    while world.clock.monotonic() < QUIET_UNTIL_S:
        await world.clock.sleep(OPERATOR_S)
        await operator.look()
    until = world.clock.monotonic() + BUDGET_S
    again = True
    while again:
        calm = await _calm(world, operator, until)
        again = not await _reported(world) and calm


async def _calm(world: World, operator: Operator, until: float) -> bool:
    """True if all VMs were well for ``REST_S``; waits for it until ``until``."""
    calm = 0.0
    while calm < REST_S and world.clock.monotonic() < until:
        await world.clock.sleep(2.0)
        await operator.look()
        calm = calm + 2.0 if _well(world) else 0.0
    return calm >= REST_S


async def _reported(world: World) -> bool:
    """True if all VMs are still well once the last changes were reported."""
    until = world.clock.monotonic() + SETTLES_S
    while world.clock.monotonic() < until:
        if _well(world) and world.clock.monotonic() - world.judge.changed_s >= REPORTED_S:
            return True
        await world.clock.sleep(REPORTED_S / 2)
    return _well(world)


def _well(world: World) -> bool:
    """True if every VM runs or says why not, and OVN is as it should be."""
    down = any(check_runs_or_reason(world.truth, vm) for vm in world.store.list_all(VirtualMachine))
    return not down and not any(check_network(world.truth)) and not any(find_leftover_rows(world.truth))
