"""What is proven, and what goes with a proof: judges find what was planted, and let what is right pass."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support import judges
from tests.support.judges import DEAD, make_holder, make_member, make_vm, put_domain, without_holders, write_as
from tests.support.virtual_hosts import Bench, PermissiveStore, author

from outlive.base import Forbidden
from outlive.guard import GuardState, Phase
from outlive.resources import (
    Assigned,
    Cut,
    FenceRecord,
    FormerMembership,
    GuardRecord,
    Hypervisor,
    Membership,
    ObjectMeta,
    Proof,
    VirtualMachine,
)

_replace = msgspec.structs.replace


def judged(story: Any) -> list[str]:
    """What is found where nothing refuses it before."""
    return judges.judged(story, PermissiveStore)


finds = partial(judges.finds, by=judged)


@finds("S2")
async def test_entry_of_a_host_that_is_not_proven_dead_must_not_go(bench: Bench) -> None:
    bench.store.load([make_vm(make_holder("h1")), make_member("h1")])
    await write_as(bench, author("h2", "recovery"), without_holders)


def test_who_wants_an_entry_of_such_a_host_to_go_is_found_at_once_also_where_the_server_refuses_it() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([make_vm(make_holder("h1")), make_member("h1")])
        with pytest.raises(Forbidden, match="nothing proves that epoch 1 is fenced"):
            await write_as(bench, author("ctl", "recovery"), without_holders)

    assert judges.judged(story) == ["S2"]


@finds("S2")
async def test_entry_of_another_membership_of_the_same_name_must_not_go(bench: Bench) -> None:
    other = _replace(make_holder("h1"), member_uid="gone")
    bench.store.load([make_vm(other), make_member("h1", dead_through=1, proof=DEAD)])
    await write_as(bench, author("h2", "recovery"), without_holders)


@finds()
async def test_entry_of_a_host_that_is_proven_dead_may_go(bench: Bench) -> None:
    bench.store.load([make_vm(make_holder("h1")), make_member("h1", dead_through=1, proof=DEAD)])
    await write_as(bench, author("h2", "recovery"), without_holders)


def test_entry_of_a_host_that_is_cut_off_needs_all_of_the_scope() -> None:
    def story(scope: tuple[str, ...]) -> Any:
        async def reported(bench: Bench) -> None:
            finding = Proof(kind="cut", evidence="read back", epoch=1)
            cut = Cut(through=1, scope=scope, proof=finding)
            bench.store.load([make_vm(make_holder("h1")), make_member("h1", cut=cut)])
            await write_as(bench, author("h2", "recovery"), without_holders)

        return reported

    assert judged(story(("disk:vm-1-root", "port:vm-1-net"))) == []
    assert judged(story(("disk:vm-1-root",))) == ["S2"]


def test_entry_of_a_host_that_was_cut_off_may_go_until_caches_see_that_its_membership_was_deleted() -> None:
    def story(after_s: float) -> Any:
        async def reported(bench: Bench) -> None:
            cut = Cut(through=1, scope=("disk:vm-1-root", "port:vm-1-net"), proof=Proof(kind="cut", epoch=1))
            bench.store.load([make_vm(make_holder("h1"))])
            deleted_s = asyncio.get_running_loop().time() - after_s
            bench.judge.truth.cut_when_deleted[make_holder("h1").member_uid] = (cut, deleted_s)
            await write_as(bench, author("h2", "recovery"), without_holders)

        return reported

    assert judged(story(1.0)) == []
    assert judged(story(3.0)) == ["S2"]


def test_what_a_membership_said_of_a_former_one_counts_also_after_somebody_deleted_it() -> None:
    def story(recorded: bool) -> Any:
        async def reported(bench: Bench) -> None:
            bench.store.load([make_vm(_replace(make_holder("h1"), member_uid="gone"))])
            former = (FormerMembership(uid="gone", dead_through=1, proof=DEAD),) if recorded else ()
            made = await bench.store.create(make_member("h1", former=former))
            await bench.store.delete(made.ref)
            await write_as(bench, author("h2", "recovery"), without_holders)

        return reported

    assert judged(story(True)) == []
    assert judged(story(False)) == ["S2"]


def test_own_entry_goes_only_without_a_domain() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([make_vm(make_holder("h1")), make_member("h1")])
        put_domain(bench, "h1")
        await write_as(bench, author("h1", "daemon"), without_holders)

    assert "S2" in judged(story)


@finds("S2")
async def test_recovery_assigns_only_what_every_holder_has_lost(bench: Bench) -> None:
    bench.store.load([make_vm(make_holder("h1")), make_member("h1")])

    def moved(vm: VirtualMachine) -> VirtualMachine:
        return _replace(vm, status=_replace(vm.status, assigned=Assigned(hypervisor="h2", fence="f")))

    await write_as(bench, author("ctl", "recovery"), moved)


def test_dead_through_grows_only_with_a_proof_and_never_shrinks() -> None:
    def story(before: dict[str, Any], after: dict[str, Any]) -> Any:
        async def reported(bench: Bench) -> None:
            bench.store.load([make_member("h1", epoch=3, **before)])
            await write_as(
                bench,
                author("h2", "fencer"),
                lambda one: _replace(one, record=_replace(one.record, **after)),
                kind=Membership,
                name="h1",
            )

        return reported

    assert judged(story({}, {"dead_through": 1})) == ["S2"]
    assert judged(story({}, {"dead_through": 3, "proof": DEAD})) == ["S2"]
    assert judged(story({"dead_through": 2, "proof": DEAD}, {"dead_through": 1})) == ["S2"]
    assert judged(story({}, {"dead_through": 1, "proof": DEAD})) == []


@finds("proof")
async def test_proof_that_is_not_true_is_found(bench: Bench) -> None:
    bench.store.load([make_vm(make_holder("h1")), make_member("h1")])
    put_domain(bench, "h1")
    await write_as(
        bench,
        author("h2", "fencer"),
        lambda one: _replace(one, record=_replace(one.record, dead_through=1, proof=DEAD)),
        kind=Membership,
        name="h1",
    )


@finds("held")
async def test_restored_store_is_not_blamed_for_what_a_host_has_not_registered_yet_and_is_afterwards(
    bench: Bench,
) -> None:
    bench.store.load([make_vm(make_holder("h2")), make_member("h1", incarnation="before"), make_member("h2")])
    bench.judge.truth.restored = True
    put_domain(bench, "h1")
    assert bench.broken() == []
    joined = bench.store.incarnation
    await write_as(
        bench,
        author("h1", "daemon"),
        lambda one: _replace(one, record=_replace(one.record, incarnation=joined)),
        kind=Membership,
        name="h1",
    )
    bench._changed("h1", "vm-1", "looked at")


def test_proof_is_not_untrue_because_of_a_vm_that_a_restored_store_does_not_know_or_that_was_deleted() -> None:
    def story(restored: bool = False, deleted: bool = False) -> Any:
        async def reported(bench: Bench) -> None:
            bench.store.load([make_member("h1"), *([make_vm()] if deleted else [])])
            bench.judge.truth.restored = restored
            if deleted:
                await bench.store.delete(make_vm().ref)
            put_domain(bench, "h1")
            await write_as(
                bench,
                author("h1", "fencer"),
                lambda one: _replace(one, record=_replace(one.record, dead_through=1, proof=DEAD)),
                kind=Membership,
                name="h1",
            )

        return reported

    assert judged(story(restored=True)) == []
    assert judged(story(deleted=True)) == []
    assert judged(story()) == ["proof"]


def renewed(found: Membership) -> Membership:
    return _replace(found, record=_replace(found.record, seq=found.record.seq + 1))


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("", ["silence"]),
        ("1@uid-h1|ann|smoke", []),
        ("0@uid-h1|ann|an earlier one", ["silence"]),
        ("1@uid-of-a-machine-that-was-replaced|ann|smoke", ["silence"]),
    ],
)
def test_host_that_is_condemned_right_after_it_renewed_is_found_unless_somebody_asked_for_this_one_fence(
    order: str, found: list[str]
) -> None:
    def condemn(found: Membership) -> Membership:
        return _replace(found, record=_replace(found.record, state="Revoked", fence=FenceRecord(id="f", epoch=1)))

    async def ordered(bench: Bench, text: str) -> None:
        host = await bench.store.get(Hypervisor, "h1")
        fencing = _replace(host.spec.fencing, requested=text)
        await bench.store.replace(_replace(host, spec=_replace(host.spec, fencing=fencing)))

    async def story(bench: Bench) -> None:
        bench.store.load([make_member("h1", epoch=1), Hypervisor(metadata=ObjectMeta(name="h1"))])
        if order:
            await ordered(bench, order)
            await ordered(bench, "")  # called off: it may be carried out already
        await write_as(bench, author("h1", "daemon"), renewed, kind=Membership, name="h1")
        await write_as(bench, author("h2", "fencer"), condemn, kind=Membership, name="h1")

    assert judged(story) == found


def test_watchdog_proof_that_comes_before_guard_and_watchdog_had_all_their_time_is_found() -> None:
    guard = GuardRecord(armed=True, timeout_s=5.0, watchdog_s=10.0)
    proof = _replace(DEAD, kind="watchdog")

    def proven(found: Membership) -> Membership:
        fence = FenceRecord(id="f", epoch=1, findings=(proof,))
        return _replace(found, record=_replace(found.record, state="Revoked", fence=fence))

    def said(waits_s: float) -> list[str]:
        async def story(bench: Bench) -> None:
            bench.store.load([make_member("h1", epoch=1, guard=guard)])
            await write_as(bench, author("h1", "daemon"), renewed, kind=Membership, name="h1")
            await asyncio.sleep(waits_s)
            await write_as(bench, author("h2", "fencer"), proven, kind=Membership, name="h1")

        return judged(story)

    assert said(26.9) == ["proof"]
    assert said(27.3) == []


@pytest.mark.parametrize(
    ("guard", "found"),
    [
        (GuardState(phase=Phase.WATCHING, timeout_s=5.0, watchdog_s=10.0), []),
        (GuardState(phase=Phase.WATCHING, timeout_s=5.0, watchdog_s=9.0), []),
        (GuardState(phase=Phase.WATCHING, timeout_s=6.0, watchdog_s=10.0), ["guard"]),
        (GuardState(phase=Phase.WATCHING, timeout_s=5.0, watchdog_s=15.0), ["guard"]),
        (GuardState(), ["guard"]),
    ],
)
def test_guard_that_waits_longer_than_its_host_publishes_is_found(guard: GuardState, found: list[str]) -> None:
    async def story(bench: Bench) -> None:
        says = GuardRecord(armed=True, timeout_s=5.0, watchdog_s=10.0)
        bench.store.load([make_member("h1", epoch=1, guard=says), make_member("h2", epoch=1)])
        bench.judge.judge_guard("h1", guard)
        bench.judge.judge_guard("h2", guard)

    assert judged(story) == found
