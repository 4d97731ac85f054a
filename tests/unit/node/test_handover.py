"""The primary's addresses go from one coordinator to the next: make before break, each step with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.coordinators import Coordinators, SilentStore
from tests.support.handover_model import model_handover
from tests.support.loops import run, run_by

from outlive.base import LoopClock, Unavailable
from outlive.node import (
    HOLDER_S,
    LEAVER_S,
    LOOKS_OF_KERNEL,
    PHASES,
    UNTAKEN_S,
    HandoverInput,
    HandoverStep,
    RoleAddresses,
    begin_handover,
    describe_handover,
    handover_step,
    note_added,
    note_removed,
    role_of,
)
from outlive.node.ports import FoundLinks, HostLink, LinkOp, NoLinks
from outlive.resources import (
    AddressHandover,
    AddressPhase,
    ElectionRecord,
    Membership,
)
from outlive.resources.reasons import FaultCode

_replace = msgspec.structs.replace
PLACES: dict[AddressPhase, list[tuple[str, str]]] = {
    "upstream": [("brupstream", "192.0.2.10/24")],
    "cluster": [("brcluster", "10.0.0.10/24"), ("brstorage", "10.1.0.10/24")],
    "metadata": [("lo", "169.254.169.254/32")],
    "gateways": [("vmbr10", "10.10.0.1/24"), ("vmbr20", "10.20.0.1/24")],
}
TOKENS = {
    "brupstream": "upstream",
    "brcluster": "cluster",
    "brstorage": "storage",
    "lo": "metadata_ip",
    "vmbr10": "gateways:10",
    "vmbr20": "gateways:20",
}
LETTERS = dict(zip(PHASES, "CDEF", strict=True))


class Cable:
    """Who has which address, for how long nobody had it, and for how long two hosts had it."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.have: dict[str, dict[str, float]] = {}
        self.gap_s: dict[str, float] = {}
        self.overlap_s: dict[str, float] = {}
        self._free_since: dict[str, float] = {}
        self.steps: list[tuple[str, str, str]] = []

    def add(self, host: str, device: str, address: str) -> None:
        now, hosts = self.clock.monotonic(), self.have.setdefault(address, {})
        if not hosts and address in self._free_since:
            self.gap_s[address] = max(self.gap_s.get(address, 0.0), now - self._free_since[address])
        if host not in hosts:
            hosts[host] = now
            self.steps.append((host, "add", device))

    def remove(self, host: str, device: str, address: str) -> None:
        now, hosts = self.clock.monotonic(), self.have.setdefault(address, {})
        if hosts.pop(host, None) is not None:
            self.steps.append((host, "del", device))
            others = list(hosts.values())
            if others:
                self.overlap_s[address] = max(self.overlap_s.get(address, 0.0), now - max(others))
            else:
                self._free_since[address] = now


class CableLinks(NoLinks):
    """One host's devices."""

    def __init__(self, host: str, cable: Cable) -> None:
        self.host, self.cable = host, cable
        self.hangs_in: AddressPhase = ""
        self.waits_s = 0.02
        self.ops: list[LinkOp] = []

    async def read(self, sysctls: Collection[str] = ()) -> FoundLinks:
        found: dict[str, tuple[str, ...]] = {}
        for device, address in [place for places in PLACES.values() for place in places if place[0] != "lo"]:
            own = (address,) if self.host in self.cable.have.get(address, ()) else ()
            found[device] = (*found.get(device, ()), *own)
        return FoundLinks(links=tuple(HostLink(name=name, addresses=own) for name, own in found.items()))

    async def list_addresses(self, device: str) -> tuple[str, ...]:
        return tuple(one for _, one in PLACES["metadata"] if self.host in self.cable.have.get(one, ()))

    async def carry_out(self, op: LinkOp) -> None:
        self.ops.append(op)

    async def add_address(self, device: str, address: str) -> None:
        await asyncio.sleep(self.waits_s)
        self.cable.add(self.host, device, address)

    async def remove_address(self, device: str, address: str) -> None:
        if self.hangs_in and device in [place[0] for place in PLACES.get(self.hangs_in, ())]:
            await asyncio.sleep(1e9)
        self.cable.remove(self.host, device, address)


class NotedGuard:
    """What the guard of a host was told; it acts once the time has passed."""

    def __init__(self, links: CableLinks, clock: LoopClock) -> None:
        self.links, self.clock = links, clock
        self.until = 0.0
        self.places: dict[tuple[str, str], None] = {}
        self.former: list[tuple[str, str]] = []
        self.fails = False

    async def start(self) -> None:
        if self.fails:
            raise Unavailable("the guard does not start")

    async def extend(self, seconds: float) -> None:
        self.until = self.clock.monotonic() + seconds

    async def hold(self, device: str, address: str) -> None:
        self.places[device, address] = None

    async def list_leftovers(self) -> list[tuple[str, str]]:
        return self.former

    async def release(self, device: str, address: str) -> None:
        self.places.pop((device, address), None)

    async def close(self) -> None:
        self.until = 0.0

    async def run(self) -> None:
        while True:
            await self.clock.sleep(0.1)
            if self.clock.monotonic() >= self.until:
                for device, address in self.places:
                    self.links.cable.remove(self.links.host, device, address)


class NotedDuty:
    def __init__(self, name: str, host: str, cable: Cable) -> None:
        self.name, self.host, self.cable = name, host, cable
        self.hangs = False

    async def start(self, term: int) -> None:
        self.cable.steps.append((self.host, "start", self.name))

    async def stop(self) -> None:
        if self.hangs:
            await asyncio.sleep(1e9)
        self.cable.steps.append((self.host, "stop", self.name))


class Hosts(Coordinators):
    """Coordinators with addresses."""

    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self.cable = Cable(self.clock)
        self.links: dict[str, CableLinks] = {}
        self.guards: dict[str, NotedGuard] = {}
        self.duties: dict[str, list[NotedDuty]] = {}
        self.wanted = {phase: list(places) for phase, places in PLACES.items()}
        for host in hosts:
            links = self.links[host] = CableLinks(host, self.cable)
            guard = self.guards[host] = NotedGuard(links, self.clock)
            duties = self.duties[host] = [NotedDuty("api", host, self.cable), NotedDuty("dns", host, self.cable)]
            self.add(host, duties, addresses=RoleAddresses(links, guard, lambda: self.wanted))

    async def start(self) -> None:
        for host, guard in self.guards.items():
            await self.join(host)
            self.tasks[f"guard {host}"] = asyncio.create_task(guard.run())
        await super().start()

    def owners(self) -> set[str]:
        return {host for hosts in self.cable.have.values() for host in hosts}


def told(story: Callable[[Hosts], Any], *hosts: str) -> None:
    async def whole() -> None:
        played = Hosts(*(hosts or ("a", "b")))
        await played.start()
        await story(played)
        await played.end()

    run(whole())


def steps_of(it: Hosts) -> list[str]:
    """What was done, in the words of the model; both sides of a phase sorted as the model has them."""
    words = []
    letters = {place[0]: LETTERS[phase] for phase, places in PLACES.items() for place in places}
    for host, verb, what in it.cable.steps:
        if what in ("dns", "api"):
            words.append(f"{'B' if verb == 'stop' else 'G'}:{host}:{verb}_{what}")
        else:
            words.append(f"{letters[what]}:{host}:{verb}_{TOKENS[what]}")
    return words


@settings(max_examples=12)
@given(st.sampled_from([None, "B", "C", "D", "E", "F"]))
def test_the_hand_over_does_what_the_model_does(stalls_in: str | None) -> None:
    async def story(it: Hosts) -> None:
        it.cable.steps.clear()
        if stalls_in == "B":
            for duty in it.duties["a"]:
                duty.hangs = True
        elif stalls_in is not None:
            it.links["a"].hangs_in = next(phase for phase, letter in LETTERS.items() if letter == stalls_in)
        await it.ask("b")
        timeouts: list[str] = []
        for _ in range(1900):
            await it.clock.sleep(0.01)
            handover = (await it.record()).handover
            if handover is not None and handover.overtaken and not timeouts:
                timeouts.append("CDEFG"[PHASES.index(handover.added) + 1 if handover.added else 0])
        done = steps_of(it)
        model = model_handover("b", ("a", "run"), [(10, "managed"), (20, "managed")], leaver_stalls_in=stalls_in)
        kept = ("dns", "api", "upstream", "cluster", "storage", "metadata_ip", "gateways")
        wanted = [one for one in model.steps if one.rpartition("_")[2].split(":")[0] in kept or "metadata_ip" in one]
        wanted = [one for one in wanted if "_metadata" not in one or "metadata_ip" in one]
        of_b = [one for one in done if one.split(":")[1] == "b"]
        assert of_b == [one for one in wanted if one.split(":")[1] == "b"]
        before_stall = [one for one in wanted if one.split(":")[1] == "a"]
        of_a = [one for one in done if one.split(":")[1] == "a"]
        assert of_a[: len(before_stall)] == before_stall
        for phase in "CDEF":  # make before break
            own, others = (
                [done.index(one) for one in done if one.startswith(f"{phase}:b")],
                [done.index(one) for one in of_a if one.startswith(f"{phase}:a") and one in before_stall],
            )
            assert not others or max(own) < min(others)
        # the model's candidate also waits in B, where it has nothing to do
        assert timeouts == [one for one in model.timeouts if one != "B"]
        stalled = [one for one in it.faults["b"].active if one.code == FaultCode.PRIMARY_STALLED]
        assert bool(stalled) == bool(model.timeouts)
        assert (await it.record()).phase == ""
        assert model.final["b"] == role_of("b", "coordinator", await it.record())

    told(story)


@run_by(told)
async def test_a_host_that_is_not_fit_gives_the_role_up(it: Hosts) -> None:
    it.primaries["a"].elector.may_stand = lambda: False
    await it.clock.sleep(6)
    assert it.owners() <= {"b"}
    await it.clock.sleep(8)
    assert (it.owners(), (await it.record()).holder) == ({"b"}, "b")


@run_by(told)
async def test_a_host_that_is_not_fit_for_a_moment_only_has_its_addresses_again(it: Hosts) -> None:
    assert it.owners() == {"a"}
    term, elector = (await it.record()).term, it.primaries["a"].elector
    while it.owners():  # until the short look has seen it; the long one, which gives the role up, has not
        elector.may_stand = lambda: False
        await it.clock.sleep(0.05)
    elector.may_stand = lambda: True
    await it.clock.sleep(2)
    assert ((await it.record()).holder, (await it.record()).term) == ("a", term)
    assert it.owners() == {"a"}
    assert all(it.cable.have.values()), "each of them"


@run_by(told)
async def test_a_holder_notes_no_phase_that_it_could_not_add(it: Hosts) -> None:
    elector = it.primaries["b"].elector
    it.links["b"].waits_s = 0.4
    await it.ask("b")
    while (await it.record()).holder != "b":
        await it.clock.sleep(0.02)
    elector.may_stand = lambda: False
    await it.clock.sleep(2)
    handover = (await it.record()).handover
    assert handover is not None
    assert (handover.added, it.owners()) == ("", {"a"})
    elector.may_stand = lambda: True
    await it.clock.sleep(8)
    assert it.owners() == {"b"}
    assert it.cable.gap_s == {}, "no address was absent at any time"


@run_by(told)
async def test_nobody_waits_for_a_leaver_that_is_proven_dead_meanwhile(it: Hosts) -> None:
    it.links["a"].hangs_in = "upstream"
    await it.ask("b")
    while not (handover := (await it.record()).handover) or not handover.added:
        await it.clock.sleep(0.02)
    member = await it.store.get(Membership, "a", fresh=True)
    dead = _replace(member.record, state="Revoked", dead_through=member.record.epoch)
    await it.store.replace(_replace(member, record=dead))
    await it.clock.sleep(3)
    assert all("b" in hosts for hosts in it.cable.have.values()), "each of them"
    assert it.faults["b"].active == (), "the host has a fault of its own"


@run_by(told)
async def test_a_leaver_whose_daemon_died_meanwhile_says_that_it_has_no_address_left(it: Hosts) -> None:
    it.links["b"].waits_s = 0.5
    await it.ask("b")
    while not (handover := (await it.record()).handover) or not handover.added:
        await it.clock.sleep(0.02)
    it.tasks["a"].cancel()
    await it.clock.sleep(0.1)
    it.tasks["a"] = asyncio.create_task(it.primaries["a"].run())
    await it.clock.sleep(6)
    assert it.owners() == {"b"}
    assert all(it.cable.have.values())
    assert it.faults["b"].active == (), "nobody has waited for it"


async def test_addresses_that_a_former_run_left_are_removed() -> None:
    it = Hosts("a", "b")
    for device, address in (("vmbr10", "10.10.0.1/24"), ("brupstream", "fd00:1::10/64")):
        it.cable.add("b", device, address)
        it.guards["b"].former.append((device, address))
    await it.start()
    assert it.owners() == {"a"}
    assert it.links["b"].ops == [], "and the host keeps IPv6 on its own bridges"
    await it.end()


async def test_a_host_whose_guard_cannot_be_started_is_no_candidate() -> None:
    it = Hosts("a", "b")
    it.guards["a"].fails = True
    await it.start()
    assert (await it.record()).holder == "b"
    it.guards["a"].fails = False
    await it.ask("a")
    await it.clock.sleep(10)
    assert (await it.record()).holder == "a"
    await it.end()


@run_by(told)
async def test_an_address_that_somebody_removes_from_the_primary_comes_back(it: Hosts) -> None:
    await it.clock.sleep(5)
    for device, address in (("vmbr10", "10.10.0.1/24"), ("lo", "169.254.169.254/32")):
        it.cable.remove("a", device, address)
    await it.clock.sleep(LOOKS_OF_KERNEL * 1.2)
    assert all(hosts.keys() == {"a"} for hosts in it.cable.have.values())


@run_by(told, "a", "b", "c")
async def test_a_leaver_that_is_cut_from_the_store_keeps_no_address_longer_than_it_waits(it: Hosts) -> None:
    it.tasks["b"].cancel()  # so that the phases begin later, with another holder
    await it.ask("c")
    it.links["c"].waits_s = 1.0
    while (await it.record()).holder:
        await it.clock.sleep(0.05)
    it.primaries["a"]._store = SilentStore()
    began = it.clock.monotonic()
    while "a" in it.owners():
        await it.clock.sleep(0.05)
    assert it.clock.monotonic() - began <= LEAVER_S + 1.0
    assert it.owners() <= {"c"}


@run_by(told)
async def test_a_gateway_that_changes_goes_first_and_comes_then_and_a_new_network_gets_its_own_within_2_s(
    it: Hosts,
) -> None:
    it.cable.steps.clear()
    it.wanted["gateways"] = [("vmbr10", "10.10.0.254/24"), *PLACES["gateways"][1:], ("vmbr30", "10.30.0.1/24")]
    await it.clock.sleep(2)
    assert [one[:2] for one in it.cable.steps] == [("a", "del"), ("a", "add"), ("a", "add")]
    assert it.cable.have["10.30.0.1/24"].keys() == {"a"}


# Steps, one by one


def see(host: str, record: ElectionRecord, waited_s: float = 0.0, *, going: bool = False) -> HandoverStep:
    return handover_step(HandoverInput(host=host, record=record, waited_s=waited_s, going=going))


@given(st.integers(0, 4), st.integers(0, 4), st.floats(0, 60), st.booleans(), st.booleans())
def test_no_side_waits_for_ever_and_none_removes_what_is_nowhere_else_before_its_limit(
    added: int, removed: int, waited_s: float, taken: bool, going: bool
) -> None:
    names: tuple[AddressPhase, ...] = ("", *PHASES)
    handover = AddressHandover(leaver="a", added=names[added], removed=names[removed])
    record = ElectionRecord(holder="b" if taken else "", previous="a", handover=handover)
    leaver = see("a", record, waited_s, going=going)
    if leaver.do == "remove" and added <= removed < len(PHASES):
        assert waited_s >= (LEAVER_S if taken or going else UNTAKEN_S)
    if waited_s >= UNTAKEN_S:
        assert leaver.do != "wait"
    if taken:
        holder = see("b", record, waited_s)
        assert holder.do != "add" or removed >= added, "one phase after the other"
        assert holder.do != "wait" or waited_s < HOLDER_S


def test_a_hand_over_is_begun_only_with_a_leaver_that_gave_the_role_back() -> None:
    gone = ElectionRecord(previous="a", handover=AddressHandover(leaver="a"))
    assert begin_handover(gone, "b") == AddressHandover(leaver="a")
    assert begin_handover(gone, "a") is None
    held = ElectionRecord(holder="a", phase="relinquish")
    assert begin_handover(held, "b") == AddressHandover(leaver="a", overtaken=True)
    assert begin_handover(ElectionRecord(), "b") is None
    assert note_added(gone, "upstream") == AddressHandover(leaver="a", added="upstream")
    assert note_removed(gone, "b", "upstream") is None
    assert see("c", gone) == HandoverStep(do="remove", why="another coordinator has the role")


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (ElectionRecord(), "nobody has the role of the primary coordinator"),
        (ElectionRecord(holder="a"), "a is the primary coordinator"),
        (ElectionRecord(holder="a", phase="relinquish"), "a stops its duties"),
        (
            ElectionRecord(handover=AddressHandover(leaver="a")),
            "nobody has the role of the primary coordinator; a has its addresses",
        ),
        (
            ElectionRecord(holder="b", phase="takeover", handover=AddressHandover(leaver="a")),
            "b takes over the addresses (0 of 4 phases)",
        ),
        (
            ElectionRecord(
                holder="b", phase="takeover", handover=AddressHandover(leaver="a", added="cluster", overtaken=True)
            ),
            "b takes over the addresses (2 of 4 phases, and waits for a no more)",
        ),
        (
            ElectionRecord(holder="b", phase="takeover", handover=AddressHandover(leaver="a", added="gateways")),
            "b starts its duties",
        ),
        (ElectionRecord(holder="b", phase="takeover"), "b starts its duties"),
    ],
)
def test_how_far_a_hand_over_is_can_be_read(record: ElectionRecord, text: str) -> None:
    assert describe_handover(record) == text
