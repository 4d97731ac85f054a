"""A failure story as a folder: ``README`` (one line), ``cluster.yaml``, ``timeline.yaml``, ``expect.yaml``.

The whole role of ``outlive up`` runs on virtual time over a memory store behind the fault layer; the timeline changes
the world; at the times of ``expect.yaml`` the promise is judged as in every simulation (``judges.rest``), by a
statement of it that shares nothing with the product. Hosts have no daemon here: they are as somebody imported them.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from outlive.base.clock import LoopClock
from outlive.base.duration import parse_duration
from outlive.base.errors import OutliveError
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.failover.ports import Inline
from outlive.resources import (
    ZONE_LABEL,
    Amounts,
    Assigned,
    Condition,
    Coverage,
    DomainCapabilities,
    Event,
    FailoverStatus,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Reservation,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.roles.settings import SECTIONS, role_settings
from outlive.roles.up import Ports, UpRole
from outlive.simulation.disks import Disks
from outlive.simulation.history import History
from outlive.simulation.judges.rest import coverage_is_true
from outlive.simulation.judges.truth import Truth
from outlive.simulation.spec import VmSpec, WorldSpec, hosts_of, vms_of
from outlive.simulation.stores import WorldStore
from outlive.store import list_all
from outlive.store.faults import FaultRates, FaultStore
from tests.support.field_writers import Violation, WriterStore

_replace = msgspec.structs.replace
STARTS_LIMIT = 1000
RESTART_PAUSE_S = 2.0
VERBS = (
    "move",
    "stop",
    "start",
    "delete",
    "create",
    "resize",
    "wipeVms",
    "setHost",
    "removeHost",
    "setSlotHost",
    "stripSlot",
    "faults",
    "cut",
    "heal",
    "restart",
)


@dataclass
class Story:
    """One folder, read and checked."""

    name: str
    line: str
    cluster: WorldSpec
    seed: int
    timeline: list[dict[str, Any]]
    expect: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Story:
        def load(name: str) -> Any:
            return yaml.safe_load((folder / name).read_text())

        line = (folder / "README").read_text().strip()
        assert "\n" not in line, f"{folder.name}/README is one line"
        cluster = load("cluster.yaml")
        spec = msgspec.convert(cluster, WorldSpec)
        story = cls(folder.name, line, spec, spec.seed, load("timeline.yaml") or [], load("expect.yaml"))
        for entry in story.timeline:
            verbs = set(entry) - {"at"}
            assert len(verbs) == 1, f"{folder.name}: {entry} is not one verb"
            assert verbs <= set(VERBS), f"{folder.name}: {entry} names no known verb"
        return story


@dataclass
class World:
    """The cluster of a story, and the role that runs on it."""

    story: Story
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = LoopClock()
        self.random = Random(self.story.seed)
        self.memory = WorldStore(self.clock, SeededIds(self.random.fork("store")), lambda write, author: None)
        self.truth = Truth(self.memory, {}, Disks("none", lambda host: None), History())
        self.users = WriterStore(self.memory, writer="import", report=self._violation)
        self.faulty = FaultStore(self.memory, clock=self.clock, random=self.random.fork("faults"))
        self.running: asyncio.Task[None] | None = None
        self.starts = 0

    def _violation(self, violation: Violation) -> None:
        self.problems.append(str(violation))

    async def build(self) -> None:
        """Hosts and VMs of ``cluster.yaml``."""
        for host in hosts_of(self.story.cluster):
            meta = ObjectMeta(name=host.name, labels={ZONE_LABEL: host.zone})
            made = await self.users.create(Hypervisor(metadata=meta))
            status = HypervisorStatus(
                capacity=Amounts.parse({"cpu": host.cpu, "memory": host.memory}),
                allocation=Amounts(cpu=0, memory=0),
                domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
                conditions=(Condition(type="Ready", status="True"),),
            )
            await self.users.replace_status(_replace(made, status=status))
        for vm in vms_of(self.story.cluster):
            await self.create(vm)

    async def start(self) -> None:
        """Start the process; whenever it ends with an error it is started again, as a service manager would."""
        self.running = asyncio.create_task(self._serve(), name="service")

    async def _serve(self) -> None:
        for _ in range(STARTS_LIMIT):
            role = self._role()
            try:
                await role.prepare()
                await role.run()
            except OutliveError:
                await self.clock.sleep(RESTART_PAUSE_S)
        raise AssertionError(f"started {STARTS_LIMIT} times in vain")

    def _role(self) -> UpRole:
        self.starts += 1
        settings = self.story.cluster.settings
        sections = {name: msgspec.convert(settings.get(name, {}), kind) for name, kind in SECTIONS.items()}
        random = self.random.fork(f"role-{self.starts}")
        return UpRole(
            self.faulty,
            role_settings(sections),
            Ports(computer=Inline()),
            identity=f"up-{self.starts}",
            clock=self.clock,
            random=random,
            ids=SeededIds(random.fork("ids")),
        )

    async def stop(self) -> None:
        """Kill the role where it stands."""
        assert self.running is not None
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running

    # What timelines do

    async def do(self, entry: dict[str, Any]) -> None:
        """Carry out one entry of the timeline."""
        (verb,) = set(entry) - {"at"}
        what = entry[verb] or {}
        match verb:
            case "move":
                await self.move(what["vm"], what["to"])
            case "stop" | "start":
                await self._instances(
                    await self._host_of(what["vm"]),
                    lambda there: tuple(
                        _replace(one, active=verb == "start") if one.id == what["vm"] else one for one in there
                    ),
                )
            case "delete":
                await self.delete(what["vm"])
            case "create":
                await self.create(VmSpec(**what))
            case "resize":
                await self.resize(what)
            case "wipeVms":
                for vm in [vm async for vm in list_all(self.users, VirtualMachine)]:
                    await self.users.delete(vm.ref)
            case "setHost":
                await self.set_host(what)
            case "removeHost":
                await self.users.delete((await self.users.get(Hypervisor, what["host"])).ref)
            case "setSlotHost" | "stripSlot":
                await self.damage_slot(verb, what)
            case "faults":
                self.faulty.network.rates = msgspec.convert(what, FaultRates)
            case "cut":
                self.faulty.network.cut()
            case "heal":
                self.faulty.network.heal()
            case "restart":
                await self.stop()
                await self.start()

    async def create(self, vm: VmSpec) -> None:
        """A VM that starts on its host."""
        resources = Amounts.parse({"cpu": vm.cpu, "memory": vm.memory})
        spec = VirtualMachineSpec(flavor=vm.flavor, zone=vm.zone, resources=resources, protection=vm.protection)
        made = await self.users.create(VirtualMachine(metadata=ObjectMeta(name=vm.name), spec=spec))
        status = VirtualMachineStatus(phase="ACTIVE", assigned=Assigned(hypervisor=vm.host))
        await self.users.replace_status(_replace(made, status=status))
        await self._instances(vm.host, lambda there: (*there, Instance(id=vm.name)), resources)

    async def move(self, name: str, to: str) -> None:
        """A live migration that ends now."""
        vm = await self.users.get(VirtualMachine, name)
        await self._leave(vm)
        await self.users.replace_status(_replace(vm, status=_replace(vm.status, assigned=Assigned(hypervisor=to))))
        await self._instances(to, lambda there: (*there, Instance(id=name)), vm.spec.resources)

    async def delete(self, name: str) -> None:
        """The VM goes for good."""
        vm = await self.users.get(VirtualMachine, name)
        await self._leave(vm)
        await self.users.delete(vm.ref)

    async def resize(self, what: dict[str, Any]) -> None:
        """The VM needs more or less from now on."""
        vm = await self.users.get(VirtualMachine, what["vm"])
        resources = Amounts.parse({"cpu": what["cpu"], "memory": what["memory"]})
        await self.users.replace(_replace(vm, spec=_replace(vm.spec, resources=resources)))
        await self._instances(await self._host_of(what["vm"]), lambda there: there, resources - vm.spec.resources)

    async def set_host(self, what: dict[str, Any]) -> None:
        """The host's condition ``Ready`` changes, or its capacity."""
        host = await self.users.get(Hypervisor, what["host"])
        status = host.status
        if "ready" in what:
            ready = Condition(type="Ready", status="True" if what["ready"] else "False", reason="Maintenance")
            status = _replace(status, conditions=(ready,))
        if "memory" in what:
            status = _replace(status, capacity=Amounts.parse({"cpu": what.get("cpu", "32"), "memory": what["memory"]}))
        await self.users.replace_status(_replace(host, status=status))

    async def damage_slot(self, verb: str, what: dict[str, Any]) -> None:
        """Somebody writes a slot behind Outlive's back: the first slot of a VM, by name."""
        slots = [one async for one in list_all(self.memory, Reservation) if what["vm"] in _members(one)]
        slot = min(slots, key=lambda one: one.name)
        status = (
            _replace(slot.status, host=what["host"])
            if verb == "setSlotHost"
            else _replace(slot.status, failover_reservation=None, conditions=())
        )
        await self.memory.replace_status(_replace(slot, status=status))

    async def _leave(self, vm: VirtualMachine) -> None:
        assert vm.status.assigned is not None
        await self._instances(
            vm.status.assigned.hypervisor,
            lambda there: tuple(one for one in there if one.id != vm.name),
            Amounts() - vm.spec.resources,
        )

    async def _host_of(self, vm: str) -> str:
        assigned = (await self.users.get(VirtualMachine, vm)).status.assigned
        assert assigned is not None
        return assigned.hypervisor

    async def _instances(self, name: str, change: Any, more: Amounts = Amounts()) -> None:
        host = await self.users.get(Hypervisor, name)
        instances = change(host.status.instances)
        allocation = (host.status.allocation or Amounts()) + more
        status = _replace(host.status, instances=instances, num_instances=len(instances), allocation=allocation)
        await self.users.replace_status(_replace(host, status=status))

    # Judging

    async def judge(self, moment: dict[str, Any]) -> None:
        """Hold the world against one entry of ``expect.yaml``, and against the promise."""
        where = f"at {moment['at']}"
        coverages = {one.name: one.status async for one in list_all(self.memory, Coverage)}
        slots = {one.name: one async for one in list_all(self.memory, Reservation)}
        self.problems += [f"{where}: {vm} {text}" for vm, text in coverage_is_true(self.truth)]
        summary = moment.get("coverage", {})
        required = [status for status in coverages.values() if status.required > 0]
        found = {"required": len(required), "covered": sum(status.covered for status in required)}
        for key, wanted in summary.items():
            self._expect(found[key] == wanted, f"{where}: {key} is {found[key]}, not {wanted}")
        for vm, wanted in moment.get("vms", {}).items():
            status = coverages.get(vm)
            seen = {"told": status is not None}
            if status is not None:
                seen |= {"covered": status.covered, "slots": len(status.slots), "reason": status.reason}
            for key, value in wanted.items():
                self._expect(seen.get(key) == value, f"{where}: {vm} {key} is {seen.get(key)!r}, not {value!r}")
        limits = moment.get("slots", {})
        held = sum(one.spec.type == "FailoverReservation" for one in slots.values())
        self._expect(held >= limits.get("atLeast", 0), f"{where}: {held} slots, fewer than {limits.get('atLeast')}")
        self._expect(held <= limits.get("atMost", held), f"{where}: {held} slots, more than {limits.get('atMost')}")

    async def judge_events(self) -> None:
        """Events that must have been told, and those that must not."""
        told = {one.reason async for one in list_all(self.memory, Event)}
        wanted = self.story.expect.get("events", {})
        for reason in wanted.get("must", []):
            self._expect(reason in told, f"no event {reason}; there are {sorted(told)}")
        for reason in wanted.get("mustNot", []):
            self._expect(reason not in told, f"event {reason} was told")

    def _expect(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def _members(slot: Reservation) -> dict[str, str]:
    return (slot.status.failover_reservation or FailoverStatus()).allocations


async def play(story: Story) -> list[str]:
    """Run the story to its last expectation; everything that was not as it should be."""
    world = World(story)
    await world.build()
    await world.start()
    begun = world.clock.monotonic()
    todo = [(parse_duration(entry["at"]), 0, entry) for entry in story.timeline]
    todo += [(parse_duration(entry["at"]), 1, entry) for entry in story.expect["at"]]
    for moment, judged, entry in sorted(todo, key=lambda one: one[:2]):
        await world.clock.sleep(begun + moment - world.clock.monotonic())
        assert world.running is not None
        assert not world.running.done(), f"the role ended: {world.running}"
        if judged:
            await world.judge(entry)
        else:
            await world.do(entry)
    await world.judge_events()
    await world.stop()
    return world.problems
