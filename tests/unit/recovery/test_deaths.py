"""Deaths that repeat: which of them count for a VM, and for a host."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.support.loops import run, running
from tests.support.recovery import RecoveryCloud

from outlive.base import LoopClock, Random, Refused, SeededIds, as_datetime, as_instant
from outlive.recovery import (
    ActionKind,
    Death,
    FlapView,
    RecoveryAction,
    death_of,
    enter_dropped,
    enter_held,
    failures_of,
    find_died_together,
    is_held_so,
    release_host,
    update_quarantine,
)
from outlive.resources import (
    DEFAULT_LIMITS,
    Cluster,
    FencingPolicy,
    Holder,
    HostDeath,
    HostFailure,
    Hypervisor,
    MemberRecord,
    Membership,
    ObjectMeta,
    Proof,
    Quarantine,
    Recovery,
    RecoveryPhase,
    VirtualMachine,
)
from outlive.resources.reasons import HoldReason, make_reason
from outlive.store import MemoryStore

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def failure(host: str = "h1", at: datetime = NOW) -> HostFailure:
    return HostFailure(host=host, epoch=1, at=at)


def failures(
    *before: HostFailure,
    host: str = "h2",
    started_s: float | None = 60,
    kind: Any = "power",
    with_it: tuple[str, ...] = (),
) -> list[str]:
    """Hosts that count once ``host`` was proven dead now, where the VM was started ``started_s`` ago."""
    since = None if started_s is None else ago(started_s)
    holder = Holder(hypervisor=host, epoch=1, run_id="r", seen="running", since=since)
    proofs = {"r": Proof(kind=kind, epoch=1, at=NOW)}
    found = failures_of(before, (holder,), proofs, lambda host, at: with_it, lambda host: 5.0, DEFAULT_LIMITS)
    return [one.host for one in found]


class TestVms:
    def test_hosts_count_that_died_soon_after_the_start_one_after_the_other(self) -> None:
        assert failures() == ["h2"]
        assert failures(failure()) == ["h1", "h2"]

    def test_vm_that_ran_for_long_begins_to_count_anew(self) -> None:
        assert failures(failure(), started_s=DEFAULT_LIMITS.start_window_s + 1) == []

    def test_death_that_others_share_does_not_count_but_for_hosts_that_count_already(self) -> None:
        assert failures(failure(), with_it=("h9",)) == ["h1"]
        assert failures(failure(), with_it=("h1",)) == ["h1", "h2"]

    def test_neither_its_own_word_nor_an_unknown_start_counts(self) -> None:
        assert failures(failure(), kind="self-cleaned") == ["h1"]
        assert failures(failure(), started_s=None) == ["h1"]

    def test_host_that_was_dying_when_it_was_started_there_does_not_count(self) -> None:
        assert failures(failure(), started_s=9) == ["h1"]
        assert failures(failure(), started_s=10) == ["h1", "h2"]

    def test_the_same_death_counts_once(self) -> None:
        assert failures(HostFailure(host="h2", epoch=1, at=NOW)) == ["h2"]

    def test_death_that_counted_counts_no_more_once_others_turn_out_to_have_died_with_it(self) -> None:
        assert failures(failure(), failure("h2"), with_it=("h9",)) == ["h1"]


def member(kind: Any = "power", at: datetime | None = NOW, epoch: int = 3, **more: Any) -> Membership:
    proof = Proof(kind=kind, epoch=epoch, at=at)
    record = MemberRecord(machine_id="m", boot_id="b", epoch=epoch, dead_through=epoch, proof=proof, **more)
    return Membership(metadata=ObjectMeta(name="h1", uid="u"), record=record)


def died(seconds: float, epoch: int, *, counts: bool = True) -> HostDeath:
    return HostDeath(at=ago(seconds), uid="u", epoch=epoch, proof="power", counts=counts)


def host(*deaths: HostDeath, quarantine: Quarantine | None = None, word: str = "") -> Hypervisor:
    found = Hypervisor(metadata=ObjectMeta(name="h1"))
    spec = msgspec.structs.replace(found.spec, management="node", quarantine_release=word)
    status = msgspec.structs.replace(found.status, deaths=deaths, quarantine=quarantine)
    return msgspec.structs.replace(found, spec=spec, status=status)


def flaps(
    found: Hypervisor, seen: Membership | None = None, *, resting: bool = False, after_s: float = 0.0, **more: Any
) -> tuple[list[tuple[int, bool]], Quarantine | None]:
    """Epochs that died, whether they count, and the quarantine."""
    view = FlapView(FencingPolicy(), lambda host, at: (), hosts=10, quarantined=0)._replace(**more)
    deaths, quarantine = update_quarantine(found, seen or member(), view, as_instant(NOW) + after_s, resting=resting)
    return [(one.epoch, one.counts) for one in deaths], quarantine


QUARANTINE = Quarantine(since=ago(60), until=NOW + timedelta(days=1), deaths=3)


class TestHosts:
    def test_third_death_within_an_hour_is_one_too_many(self) -> None:
        deaths, quarantine = flaps(host(died(3000, 1), died(100, 2)))
        assert deaths == [(1, True), (2, True), (3, True)]
        assert quarantine is not None
        assert (quarantine.deaths, quarantine.until) == (3, NOW + timedelta(days=1))

    def test_what_is_older_is_forgotten(self) -> None:
        assert flaps(host(died(3700, 1), died(100, 2))) == ([(2, True), (3, True)], None)
        assert flaps(host(), member(at=ago(4000))) == ([], None)

    @pytest.mark.parametrize("seen", [member("self-cleaned"), member(at=None), member(at=ago(100), epoch=2)])
    def test_orderly_ends_and_deaths_that_are_known_do_not_count_again(self, seen: Membership) -> None:
        assert flaps(host(died(3000, 1), died(100, 2)), seen) == ([(1, True), (2, True)], None)

    def test_deaths_during_work_and_of_most_hosts_at_once_do_not_count(self) -> None:
        before = host(died(3000, 1), died(100, 2))
        assert flaps(before, resting=True) == ([(1, True), (2, True), (3, False)], None)
        others = lambda host, at: tuple(f"h{n}" for n in range(2, 7))  # noqa: E731
        assert flaps(before, together=others) == ([(1, True), (2, True), (3, False)], None)
        assert flaps(before, together=lambda host, at: ("h2",))[1] is not None

    def test_no_more_than_half_of_the_hosts_are_in_quarantine(self) -> None:
        before = host(died(3000, 1), died(100, 2))
        assert flaps(before, quarantined=5)[1] is None
        assert flaps(before, quarantined=4)[1] is not None

    def test_it_ends_at_its_time_or_by_another_word_and_its_deaths_count_no_more(self) -> None:
        deaths = (died(300, 1), died(200, 2), died(100, 3))
        seen = member(at=ago(100))
        assert flaps(host(*deaths, quarantine=QUARANTINE), seen)[1] == QUARANTINE
        over = ([(1, False), (2, False), (3, False)], None)
        assert flaps(host(*deaths, quarantine=QUARANTINE, word="again"), seen) == over
        ended = msgspec.structs.replace(QUARANTINE, until=NOW)
        assert flaps(host(*deaths, quarantine=ended), seen) == over

    def test_what_is_written_changes_nothing_at_the_next_look(self) -> None:
        found, seen = host(died(3000, 1), died(100, 2)), member()
        view = FlapView(FencingPolicy(), lambda host, at: (), hosts=10, quarantined=0)
        for _ in range(2):
            deaths, quarantine = update_quarantine(found, seen, view, as_instant(NOW), resting=False)
            status = msgspec.structs.replace(found.status, deaths=deaths, quarantine=quarantine)
            found, before = msgspec.structs.replace(found, status=status), found
        assert found == before


def test_hosts_that_die_at_about_the_same_time_die_together() -> None:
    deaths = [Death("h1", NOW), Death("h2", ago(59)), Death("h3", ago(61)), Death("h4", None)]
    assert find_died_together("h1", NOW, deaths, NOW) == ["h2", "h4"]
    assert find_died_together("h1", ago(600), deaths, NOW) == []


def test_host_that_is_condemned_or_silent_is_dying() -> None:
    held = MemberRecord(machine_id="m", boot_id="b")
    assert death_of("h", held) is None
    assert death_of("h", held, silent=True) == death_of("h", msgspec.structs.replace(held, state="Revoked"))
    assert death_of("h", member("self-cleaned").record) is None
    assert death_of("h", member().record) == Death("h", NOW)


async def test_host_takes_no_vm_in_quarantine_and_is_let_out_by_a_command() -> None:
    found = host(quarantine=QUARANTINE)
    assert found.closed_reason() == "is in quarantine: it died 3 times"
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    made = await store.create(found)
    await store.replace_status(msgspec.structs.replace(made, status=found.status))
    assert await release_host(store, clock, "h1", word="w") == "h1 is let out of its quarantine"
    assert (await store.get(Hypervisor, "h1")).spec.quarantine_release == "w"
    await store.create(msgspec.structs.replace(host(), metadata=ObjectMeta(name="h2")))
    with pytest.raises(Refused, match="h2 is not in quarantine"):
        await release_host(store, clock, "h2", word="w")


def test_no_more_than_half_of_the_hosts_come_into_quarantine_also_at_one_look() -> None:
    async def story() -> list[str]:
        cloud = RecoveryCloud()
        async with running(cloud):
            await cloud.cluster(fencing=FencingPolicy(flap_deaths=0))
            await cloud.hosts("h1", "h2", "h3", "h4", management="node")
            for name in ("h1", "h2", "h3", "h4"):
                found = await cloud.memory.get(Hypervisor, name)
                death = HostDeath(at=as_datetime(cloud.clock.now()), uid="u", epoch=0, proof="power", counts=True)
                status = msgspec.structs.replace(found.status, deaths=(death,))
                await cloud.memory.replace_status(msgspec.structs.replace(found, status=status))
            async with running(cloud.manager()):
                await cloud.clock.sleep(10)
                cluster = await cloud.memory.get(Cluster, "default")
                spec = msgspec.structs.replace(cluster.spec, fencing=FencingPolicy(flap_deaths=1))
                await cloud.memory.replace(msgspec.structs.replace(cluster, spec=spec))
                await cloud.clock.sleep(30)
        return [one.name for one in (await cloud.memory.list(Hypervisor)).items if one.status.quarantine is not None]

    assert len(run(story())) == 2


def test_host_that_the_record_knows_counts_on_when_it_dies_once_more() -> None:
    holder = Holder(hypervisor="h2", epoch=1, run_id="r", since=ago(7200))
    for kind in ("power", "self-cleaned"):
        proofs = {"r": Proof(kind=kind, epoch=2, at=NOW)}  # type: ignore[arg-type]
        before = (failure(), failure("h2"))
        found = failures_of(before, (holder,), proofs, lambda host, at: (), lambda host: 5.0, DEFAULT_LIMITS)
        assert found == before


def vm_that_waits(*failures: HostFailure) -> VirtualMachine:
    """A VM that waits since these hosts died under it."""
    record = Recovery(fence="f", phase=RecoveryPhase.HELD, host_failures=failures)
    found = VirtualMachine(metadata=ObjectMeta(name="vm-1"))
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, recovery=record))


HOLD = RecoveryAction(
    vm="vm-1",
    kind=ActionKind.HOLD,
    fence="f",
    reason=make_reason(HoldReason.BRINGS_DOWN_HOSTS, hosts=("h1", "h2"), name="vm-1"),
)


class TestRecord:
    def test_wait_keeps_the_hosts_that_died_and_is_written_again_when_they_are_others(self) -> None:
        vm, failed = vm_that_waits(failure()), (failure(), failure("h2"))
        record = enter_held(vm, HOLD, NOW, failures=failed)
        assert record.host_failures == failed
        assert is_held_so(record, HOLD, failed)
        assert not is_held_so(record, HOLD, failed[:1])

    def test_vm_that_a_person_stops_while_it_waits_begins_to_count_anew(self) -> None:
        vm = vm_that_waits(failure(), failure("h2"))
        stopped = msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, power_state="stopped"))
        assert enter_dropped(vm, HOLD, (), NOW).host_failures == (failure(), failure("h2"))
        assert enter_dropped(stopped, HOLD, (), NOW).host_failures == ()


def test_times_that_a_host_wrote_without_a_zone_end_no_look_of_recovery() -> None:
    plain = NOW.replace(tzinfo=None)
    holder = Holder(hypervisor="h2", epoch=1, run_id="r", since=plain - timedelta(seconds=60))
    proofs = {"r": Proof(kind="power", epoch=1, at=NOW)}
    found = failures_of((), (holder,), proofs, lambda host, at: (), lambda host: 5.0, DEFAULT_LIMITS)
    assert [one.host for one in found] == ["h2"]
    assert flaps(host(), member(at=plain))[0] == [(3, True)]
    assert find_died_together("h1", NOW, [Death("h2", plain), Death("h3", datetime(1, 1, 1))], NOW) == ["h2"]  # noqa: DTZ001
