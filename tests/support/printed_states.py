"""What every output prints of hosts and VMs in the middle of a story, against how they really are.

Each output is made by the command itself, on the objects of the simulated store and with what a server of the story
answers; where none runs, as a command that only reads the store. The truth is the simulation's: when a renewal of a
host last counted, which guests run, what is on record as dead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from outlive.base import Clock
from outlive.cli import Access, Form, ListForm, ObjectOutput, Output, get, list_hosts, list_vms
from outlive.cli.status import status
from outlive.node import HostLife, VmLife, is_unproven
from outlive.node.fencing import HostSettings, profile_of
from outlive.recovery.why import explain
from outlive.resources import (
    CLUSTER,
    KINDS,
    Cluster,
    Coverage,
    Hypervisor,
    Membership,
    Reservation,
    VirtualMachine,
    to_builtins,
)
from outlive.simulation import QUIET, Story, World
from outlive.store import MemoryStore, Store

LOOK_S: Final = 1.0
"""How often the truth is noted."""
PRINT_S: Final = 5.0
"""How often everything is printed."""
APART_S: Final = 0.3
HONEST: Final = ("server", "has not said of it")
"""Why nothing is known of a VM whose host renews: nobody answers, or what is written is of a former membership."""
DOUBT: Final = ("may still run", "may not have ended")
"""What is said of a VM that waits because a guest of its name may run elsewhere."""
DISTURBED_S: Final = 30.0
"""So long after a disturbance of the store a server may still hear late of hosts."""
SLACK_S: Final = 3.0
"""What is printed may be so much older than the silence limit of a host: a look, a write, a way to the store."""


class _AnsweringStore(MemoryStore):
    """The objects of a moment, and what a server answers about it."""

    answer: Any = None

    async def question(self, path: str) -> Any:
        """As ``HttpStore`` has it."""
        return self.answer if path == "/liveness" else []


class StoryAccess(Access):
    """The cluster of a story, as a command finds it at this moment."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    @property
    def clock(self) -> Clock:
        """The story's."""
        return self._world.clock

    @property
    def state_clock(self) -> Clock:
        """The same."""
        return self._world.clock

    @property
    def no_server(self) -> str:
        """Whether a server of the story answers."""
        return "" if self._world.answering_server() is not None else "none runs"

    @property
    def source(self) -> str:
        """That it is a story."""
        return "a story"

    async def _open(self, write: bool, or_empty: bool) -> Store:
        world = self._world
        served = world.answering_server() is not None
        store = (_AnsweringStore if served else MemoryStore)(world.clock, world.store._ids)
        store.load([one for kind in KINDS.values() for one in world.store.list_all(kind)])
        if isinstance(store, _AnsweringStore):
            store.answer = to_builtins(await world.read_sight())
        return store


class PrintedStory(Story):
    """A story in which everything is printed every few seconds; ``wrong``: what was not so."""

    def __init__(self, *given: Any, every_s: float = PRINT_S, **named: Any) -> None:
        super().__init__(*given, **named)
        self.wrong: list[str] = []
        self.printed = 0
        self._every_s = every_s
        self._disturbed_s = float("-inf")
        """When the store, or the way to it, was last disturbed for everybody."""
        self._member_s: dict[str, float] = {}
        """Host → when it had a Membership last."""
        self._ran_s: dict[str, float] = {}
        """VM → when a guest of it was last seen to run …"""
        self._rested_s: dict[str, float] = {}
        """… and when none that can do harm was."""

    async def _run(self) -> None:
        self.world.start_task(self._watch(), name="everything is printed")
        await super()._run()

    async def _watch(self) -> None:
        """Nothing that goes wrong here is lost: the story would go on without it."""
        try:
            await self._look_and_print()
        except Exception as error:
            self.wrong.append(f"at {self.now_s:.0f} s: a command or its check broke with {error!r}")
            raise

    async def _look_and_print(self) -> None:
        await self.world.clock.sleep(APART_S)  # of acts of the timeline, which change what is so between two commands
        next_s = self.now_s + self._every_s
        while True:
            await self.world.clock.sleep(LOOK_S)
            self._note()
            if self.now_s >= next_s:
                next_s += self._every_s
                await self._print()

    def _note(self) -> None:
        truth, now_s = self.world.truth, self.world.clock.monotonic()
        world = self.world
        ensemble = world.ensemble
        if ensemble is not None and not ensemble.undisturbed:
            self._disturbed_s = now_s
        if world.store_down or world.store.failing or any(world.slow.values()) or world.rates != QUIET:
            self._disturbed_s = now_s
        self._member_s.update({one.name: now_s for one in self.world.store.list_all(Membership)})
        for vm in self.world.store.list_all(VirtualMachine):
            hosts = truth.running_hosts(vm.name)
            self._ran_s.setdefault(vm.name, now_s)
            self._rested_s.setdefault(vm.name, now_s)
            if hosts:
                self._ran_s[vm.name] = now_s
            if not any(truth.harms(host, vm.name) for host in hosts):
                self._rested_s[vm.name] = now_s

    async def _print(self) -> None:
        access = StoryAccess(self.world)
        said = await _documents(access)
        problems = [
            *self._wrong_hosts({one["name"]: one["state"] for one in said["hosts"]}, "host list"),
            *self._wrong_hosts({name: row["State"] for name, row in said["hypervisors"].items()}, "get hypervisors"),
            *self._wrong_ready({name: row["Ready"] for name, row in said["hypervisors"].items()}),
            *self._wrong_vms({one["id"]: one["state"] for one in said["vms"]}, "vm list"),
            *self._wrong_vms({name: row["State"] for name, row in said["virtualmachines"].items()}, "get vms"),
            *self._wrong_status(said["status"]),
            *[text async for text in self._wrong_why(access, said)],
        ]
        self.printed += len(said["hosts"]) + len(said["vms"])
        self.wrong += [f"at {self.now_s:.0f} s: {text}" for text in problems]

    # Truth

    def _limit_s(self, host: str) -> float:
        """Silence after which the host must not be called alive."""
        found, cluster = self.world.store.find(Hypervisor, host), self.world.store.find(Cluster, CLUSTER)
        member = self.world.store.find(Membership, host)
        settings = HostSettings(cluster, found)
        armed = member is not None and member.record.guard.armed
        profile = profile_of(settings.cluster_spec.fencing, settings.fencing, armed=armed)
        return float(profile.silence_s) + SLACK_S + self.world.slow.get(host, 0.0) + self.world.slow.get("", 0.0)

    def _age_s(self, host: str) -> float:
        """Since a renewal of the host counted last."""
        member = self.world.store.find(Membership, host)
        at_s = self.world.truth.renewed_s.get(member.metadata.uid) if member is not None else None
        if at_s is None:
            at_s = self._member_s.get(host, float("-inf"))
        return self.world.clock.monotonic() - at_s

    def _wrong_hosts(self, printed: dict[str, str], where: str) -> Iterator[str]:
        for host, text in printed.items():
            member, age_s = self.world.store.find(Membership, host), self._age_s(host)
            record = member.record if member is not None else None
            if text.startswith(HostLife.ALIVE) and (record is None or record.state != "Held" or self._is_gone(host)):
                yield f"{where}: {host} is called {text}, and renewed {age_s:.1f} s ago"
            if text.startswith(HostLife.SILENT) and age_s < self._limit_s(host) - 2 * SLACK_S and self._sees_well():
                yield f"{where}: {host} is called {text}, and renewed {age_s:.1f} s ago"
            if text.startswith(HostLife.DEAD) and record is not None and record.dead_through < record.epoch:
                yield f"{where}: {host} is called {text}, and nobody has proven it"

    def _sees_well(self) -> bool:
        """Whether the server that answers hears of the store as fast as it should."""
        return self.world.clock.monotonic() - self._disturbed_s > DISTURBED_S

    def _is_held(self, host: str) -> bool:
        """Whether nobody has condemned it: what a host says that is being fenced is no longer believed."""
        member = self.world.store.find(Membership, host)
        return member is not None and member.record.state == "Held"

    def _is_gone(self, host: str) -> bool:
        return self._age_s(host) > self._limit_s(host)

    def _wrong_ready(self, printed: dict[str, str]) -> Iterator[str]:
        for host, ready in printed.items():
            if ready == "True" and self.world.spec.daemons and self._is_gone(host):
                yield f"get hypervisors: {host} is Ready, and renewed {self._age_s(host):.1f} s ago"

    def _wrong_vms(self, printed: dict[str, str], where: str) -> Iterator[str]:
        now_s = self.world.clock.monotonic()
        for name, text in printed.items():
            vm = self.world.store.find(VirtualMachine, name)
            if vm is None or name not in self._ran_s:
                continue
            hosts = {vm.host, *(one.hypervisor for one in vm.status.holders)} - {""}
            limit_s = max((self._limit_s(host) for host in hosts), default=SLACK_S)
            still_s = now_s - self._ran_s[name]
            if VmLife.RUNNING in text.split(":")[0] and still_s > limit_s:
                yield f"{where}: {name} is called {text}, and has not run for {still_s:.0f} s"
            down = text.startswith((VmLife.WAITING, VmLife.DOWN, VmLife.STOPPED)) and not any(
                one in text for one in DOUBT
            )
            rested_s = now_s - self._rested_s[name]
            if down and rested_s > limit_s and not self.world.truth.lied:
                yield f"{where}: {name} is called {text}, and has run for {rested_s:.0f} s"
            well = hosts and all(self._is_held(host) and self._age_s(host) <= SLACK_S for host in hosts)
            if (
                text.startswith(VmLife.UNKNOWN)
                and not any(one in text for one in HONEST)
                and well
                and self._sees_well()
            ):
                yield f"{where}: {name} is called {text}, and {', '.join(sorted(hosts))} renew"

    def _wrong_status(self, said: dict[str, Any]) -> Iterator[str]:
        hosts = [one.name for one in self.world.store.list_all(Hypervisor)]
        alive = sum(not self._is_gone(host) for host in hosts) if self.world.spec.daemons else len(hosts)
        if said["hostStates"].get(HostLife.ALIVE, 0) > alive:
            yield f"status: {said['hostStates']}, and {alive} of {len(hosts)} renew"
        covered = sum(self._is_covered(one) for one in self.world.store.list_all(Coverage))
        if said["coverage"]["covered"] > covered:
            yield f"status: {said['coverage']['covered']} are called covered, and {covered} are"
        if self.world.answering_server() is None and not said["noServer"]:
            yield "status: no server runs, and that is not said"
        if self.world.answering_server() is None and said["health"] is not None:
            yield f"status: no server runs, and the health is {said['health']}"
        members = [self.world.store.find(Membership, host) for host in hosts]
        silent = [
            one.name for one in members if one is not None and one.record.state == "Held" and self._is_gone(one.name)
        ]
        if silent and said["health"] == 100:
            yield f"status: the health is 100, and {silent} do not renew"

    def _is_covered(self, one: Coverage) -> bool:
        """Whether it was found covered, and its host and those of its slots renew."""
        if not one.status.covered or one.status.required == 0:
            return False
        slots = [self.world.store.find(Reservation, slot) for slot in one.status.slots]
        hosts = (one.status.host, *(slot.status.host for slot in slots if slot is not None))
        return not self.world.spec.daemons or not any(self._is_gone(host) for host in hosts)

    async def _wrong_why(self, access: StoryAccess, said: dict[str, Any]) -> Any:
        """Of what is not well, and of the first that is."""
        async with access.open() as store:
            sight = await self.world.read_sight()
            hosts = {one["name"]: one["state"] for one in said["hosts"] if not one["state"].startswith("not")}
            chosen = [name for name, text in hosts.items() if text != HostLife.ALIVE] + list(hosts)[:1]
            for name in chosen if self.world.spec.daemons else ():
                if self.world.store.find(Membership, name) is None:
                    continue
                answer = await explain(store, name, sight)
                if "alive" in answer.summary and self._is_gone(name):
                    yield f"why: {answer.summary}, and it renewed {self._age_s(name):.1f} s ago"
                member = self.world.store.find(Membership, name)
                unconfirmed = member is not None and is_unproven(member.record)
                if "--confirm-off" in answer.remedy and not unconfirmed:
                    yield f"why: {name}: {answer.remedy}, while proofs are looked for"
            vms = {one["id"]: one["state"] for one in said["vms"]}
            for name in [one for one, text in vms.items() if not text.startswith(VmLife.RUNNING)][:3]:
                answer = await explain(store, name, sight)
                seen = [link.text for link in answer.chain if link.text.endswith(", seen running")]
                gone = [text for text in seen if self._is_gone(text.split()[0])]
                if gone:
                    yield f"why: {name}: {gone[0]}, and that host renews no more"


async def _documents(access: StoryAccess) -> dict[str, Any]:
    """What each command prints, as data."""
    found: dict[str, Any] = {}
    for key, command in (("status", status), ("hosts", list_hosts), ("vms", list_vms)):
        output = Output(Form.JSON)
        output.held = []
        await command(access, output)
        found[key] = json.loads("".join(output.held))
    for kind in ("hypervisors", "virtualmachines"):
        output = ObjectOutput(ListForm.TABLE)
        output.held = []
        await get(access, output, kind)
        found[kind] = dict(_rows("".join(output.held)))
    return found


def _rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Name → the cells by column, of a printed table."""
    lines = text.splitlines()
    if len(lines) < 2:
        return
    titles = ["Name", "Zone", "State", "Ready", "VMs"] if "Ready" in lines[0] else ["ID", "Host", "State", "Flavor"]
    begins = [lines[0].index(title) for title in titles]
    for line in lines[1:]:
        ends = [*begins[1:], len(line)]
        cells = {title: line[begin:end].strip() for title, begin, end in zip(titles, begins, ends, strict=True)}
        yield cells[titles[0]], cells
