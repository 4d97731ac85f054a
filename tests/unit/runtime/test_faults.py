"""Faults are what a role says is active now: raised once, refreshed, ended, and never raised in maintenance."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fencing import site
from tests.support.field_writers import WriterStore

from outlive.base import Forbidden, Invalid, LimitExceeded, LoopClock, Unavailable
from outlive.resources import Fault, ObjectRef
from outlive.resources.reasons import FAULTS, FaultCode
from outlive.runtime import LIST_AGAIN_S, LOOK_S, REFRESH_S, ActiveFault, FaultRecorder, compute_health, fault_name

HOST = ObjectRef(kind="Hypervisor", name="a")


def dead(host: str = "a", proof: str = "power: off") -> ActiveFault:
    return ActiveFault(FaultCode.HOST_DEAD, ObjectRef(kind="Hypervisor", name=host), {"proof": proof})


def _recorder(s, role="fencer", host="") -> FaultRecorder:
    return FaultRecorder(WriterStore(s.store, writer=role), LoopClock(), role, host)


async def _fault(s, name="host-dead.a") -> Fault:
    return await s.store.get(Fault, name)


async def test_fault_is_written_once_and_refreshed_after_a_minute():
    async with site() as s:
        faults = _recorder(s)
        await faults.record([dead()])
        first = await _fault(s)
        assert (first.message, first.delta) == ("a is dead (power: off)", 50)
        await asyncio.sleep(10)
        await faults.record([dead()])
        assert await _fault(s) == first
        await asyncio.sleep(REFRESH_S)
        await faults.record([dead()])
        again = await _fault(s)
        assert again.last_seen > first.last_seen
        assert again.first_seen == first.first_seen


async def test_what_is_not_active_any_more_ends_and_a_new_one_is_not_acknowledged():
    async with site() as s:
        faults = _recorder(s)
        await faults.record([dead()])
        await s.store.replace(msgspec.structs.replace(await _fault(s), acknowledged=True))
        await faults.record([dead(proof="watchdog: late")])
        assert ((await _fault(s)).message, (await _fault(s)).acknowledged) == ("a is dead (watchdog: late)", True)
        await faults.record([])
        assert ((await _fault(s)).ended, (await _fault(s)).acknowledged) == (True, True)
        await faults.record([dead()])
        assert ((await _fault(s)).ended, (await _fault(s)).acknowledged) == (False, False)


async def test_recorder_that_starts_ends_what_the_one_before_it_raised_and_nobody_elses():
    async with site() as s:
        stale = ActiveFault(FaultCode.FIGURES_STALE, HOST, {"who": "its kernel", "how": "does not answer"})
        other = ActiveFault(
            FaultCode.FIGURES_STALE, ObjectRef(kind="Hypervisor", name="b"), {"who": "its kernel", "how": "hangs"}
        )
        await _recorder(s).record([dead(), dead("b")])
        await _recorder(s, "daemon", "a").record([stale])
        await _recorder(s, "daemon", "b").record([other])
        await _recorder(s).record([dead("b")])
        await _recorder(s, "daemon", "a").record([])
        assert sorted(await s.faults()) == ["figures-stale.b", "host-dead.b"]


async def test_fault_that_came_back_with_a_restored_store_ends():
    async with site() as s:
        faults = _recorder(s)
        await faults.record([dead()])
        await faults.record([])
        await s.store.replace(msgspec.structs.replace(await _fault(s), ended=False))
        await asyncio.sleep(LIST_AGAIN_S)
        await faults.record([])
        assert await s.faults() == {}


async def test_nothing_is_raised_in_maintenance_of_the_cluster_the_host_or_its_controller():
    async with site() as s:
        await s.host("a")
        await s.host("b")
        faults = _recorder(s)
        await s.change_fencing("a", maintenance=True)
        await faults.record([dead()])
        assert await s.faults() == {}
        await s.change_fencing("b", power_maintenance=True)
        power = {"to": "off", "why": "no route"}
        unreachable = ActiveFault(FaultCode.POWER_UNREACHABLE, ObjectRef(kind="Hypervisor", name="b"), power)
        await faults.record([unreachable])
        assert await s.faults() == {}
        await s.policy(cluster={"maintenance": True})
        await faults.record([dead("b")])
        assert await s.faults() == {}
        await s.policy()
        await faults.record([dead("b"), unreachable])
        assert list(await s.faults()) == ["host-dead.b"]


async def test_maintenance_does_not_silence_what_keeps_a_second_vm_of_a_name_from_starting():
    async with site() as s:
        await s.policy(cluster={"maintenance": True})
        vm = ObjectRef(kind="VirtualMachine", name="web")
        await _recorder(s, "daemon", "a").record([ActiveFault(FaultCode.UNKNOWN_VM, vm, {"host": "a"}), dead()])
        assert list(await s.faults()) == ["unknown-vm.web"]


class _Refusing:
    """A store that refuses to have the fault of one host written."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def create(self, obj):
        if obj.name == "host-dead.a":
            raise Forbidden("may not write Fault/host-dead.a")
        return await self.inner.create(obj)


async def test_fault_that_is_refused_holds_up_no_other():
    async with site() as s:
        faults = FaultRecorder(_Refusing(s.store), LoopClock(), "fencer")
        await faults.record([dead("b")])
        await faults.record([dead(), dead("c")])
        assert list(await s.faults()) == ["host-dead.c"]


class _RefusingOne:
    """A store that does not take the fault of host ``a`` by this error."""

    def __init__(self, inner, error) -> None:
        self.inner, self.error, self.tries = inner, error, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def create(self, obj):
        if obj.name == "host-dead.a":
            self.tries += 1
            raise self.error
        return await self.inner.create(obj)


@pytest.mark.parametrize(
    "error", [Invalid("it is too large"), LimitExceeded("the store is full"), Unavailable("later")]
)
async def test_fault_that_cannot_be_written_silences_no_other_and_nothing_ends_late_because_of_it(error):
    async with site() as s:
        faults = FaultRecorder(_RefusingOne(s.store, error), LoopClock(), "fencer")
        await faults.record([dead("b")])
        await faults.record([dead(), dead("c")])
        await faults.record([dead(), dead("c")])
        assert list(await s.faults()) == ["host-dead.c"]  # that of host b has ended


async def test_fault_that_the_store_does_not_take_is_tried_again_once_a_minute_at_most():
    async with site() as s:
        clock = LoopClock()
        store = _RefusingOne(s.store, Invalid("it is too large"))
        faults = FaultRecorder(store, clock, "fencer")
        for _ in range(int(LIST_AGAIN_S / LOOK_S) - 1):
            await faults.record([dead()])
            await clock.sleep(LOOK_S)
        assert store.tries == 8  # at 0, 5, 15, 35, 75, 135, 195 and 255 s


async def test_fault_of_a_subject_with_a_long_name_is_told_under_a_shortened_name():
    async with site() as s:
        faults = FaultRecorder(s.store, LoopClock(), "daemon", "kvm-1")
        long, other = "a" * 253, "a" * 252 + "b"
        about = [ObjectRef(kind="VirtualMachine", name=one) for one in (long, other)]
        await faults.record([ActiveFault(FaultCode.UNKNOWN_VM, one, {"host": "kvm-1"}) for one in about])
        found = await s.faults()
        assert set(found) == {fault_name(FaultCode.UNKNOWN_VM, one) for one in about}
        assert {fault.subject.name for fault in found.values()} == {long, other}
        await faults.record([], undetermined=[FaultCode.UNKNOWN_VM])
        assert len(await s.faults()) == 2  # the code is still to be told from the name


class _Away:
    """A store that does not answer at first."""

    def __init__(self, inner) -> None:
        self.inner, self.away = inner, True

    def __getattr__(self, name):
        if not self.away:
            return getattr(self.inner, name)

        async def fail(*_args, **_options):
            raise Unavailable("the store is away")

        return fail


async def test_store_that_is_away_stops_nobody_and_nothing_is_missing_afterwards():
    async with site() as s:
        store = _Away(s.store)
        faults = FaultRecorder(store, LoopClock(), "fencer")
        await faults.record([dead()])
        store.away = False
        await faults.record([dead()])
        store.away = True
        await faults.record([])
        store.away = False
        assert list(await s.faults()) == ["host-dead.a"]
        await faults.record([])
        assert await s.faults() == {}


def _open(delta: int, **changes) -> Fault:
    values = {"code": "x", "subject": HOST, "message": "", "delta": delta, "first_seen": None, "last_seen": None}
    return Fault(**{**values, **changes})


def test_health_is_what_open_faults_leave_of_a_hundred():
    assert compute_health(()) == 100
    assert compute_health((_open(10), _open(25))) == 65
    assert compute_health((_open(50), _open(50), _open(50))) == 0
    assert compute_health((_open(50, ended=True), _open(50, acknowledged=True), _open(10))) == 90


def test_dead_and_unconfirmed_hosts_take_half_of_the_health():
    assert FaultCode.HOST_DEAD.delta == FaultCode.FENCE_UNCONFIRMED.delta == 50


@pytest.mark.parametrize("code", FaultCode)
def test_every_fault_has_an_entry_that_costs_health_and_says_what_helps(code):
    entry = FAULTS[code]
    assert entry.delta > 0
    assert entry.remedy
