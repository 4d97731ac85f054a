"""What operators ask of hosts: one write each, refused where it could not mean what they think."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal

import msgspec
import pytest
from tests.support.field_writers import WriterStore
from tests.support.loops import run

from outlive.base import InUse, LoopClock, NotFound, OutliveError, Random, Refused, SeededIds, Usage
from outlive.node import (
    call_off_fence,
    confirm_off,
    hosts_of_domains,
    request_fence,
    set_armed,
    set_drain,
    set_maintenance,
    set_power_maintenance,
)
from outlive.node.fencing import CONDEMN, CondemnView
from outlive.resources import (
    DOMAIN_LABEL_PREFIX,
    Cluster,
    ClusterSpec,
    FencingPolicy,
    Hypervisor,
    HypervisorSpec,
    MemberRecord,
    Membership,
    MemberState,
    ObjectMeta,
    R,
    Timing,
)
from outlive.store import MemoryStore, list_all

HELD = MemberRecord(machine_id="m", boot_id="b", epoch=3, nonce="abcdefgh")
CLOCK = LoopClock()


def condemned() -> MemberRecord:
    view = CondemnView(host="h1", record=HELD, unchanged_s=9.0, silence_s=7.0, observer="h2")
    record = CONDEMN.attempt(view).record
    assert record is not None
    return record


def cluster(
    record: MemberRecord,
    *,
    management: str = "node",
    requested: str = "",
    other_mode: Literal["coordinator", "hypervisor"] = "coordinator",
    kind: type[MemoryStore] = MemoryStore,
) -> WriterStore:
    store = kind(CLOCK, SeededIds(Random(1)))
    spec = msgspec.convert({"management": management, "fencing": {"requested": requested}}, HypervisorSpec)
    meta = ObjectMeta(name="h1")
    other = Hypervisor(metadata=ObjectMeta(name="other"), spec=HypervisorSpec(mode=other_mode))
    store.load([Hypervisor(metadata=meta, spec=spec), Membership(metadata=meta, record=record), other])
    return WriterStore(store, writer="users")


def asked(store: WriterStore, asking: Coroutine[Any, Any, str]) -> tuple[str, Hypervisor]:
    async def scene() -> tuple[str, Hypervisor]:
        told = await asking
        return told, await store.get(Hypervisor, "h1")

    return run(scene())


def refused(asking: Coroutine[Any, Any, str], kind: type[OutliveError]) -> OutliveError:
    async def scene() -> OutliveError:
        with pytest.raises(kind) as caught:
            await asking
        return caught.value

    return run(scene())


def test_a_request_to_fence_names_the_epoch_that_it_is_about() -> None:
    store = cluster(HELD)
    told, host = asked(store, request_fence(store, CLOCK, "h1", name="eve", reason="smells of smoke"))
    member = run(store.get(Membership, "h1"))
    assert host.spec.fencing.requested == f"3@{member.metadata.uid}|eve|smells of smoke"
    assert "epoch 3" in told


def test_the_only_coordinator_is_not_fenced_since_nobody_could_prove_it_dead() -> None:
    store = cluster(HELD, other_mode="hypervisor")
    error = refused(request_fence(store, CLOCK, "h1", name="eve", reason="smells"), Refused)
    assert "no host other than h1" in str(error)
    assert "coordinator" in error.remedy


def test_an_order_that_is_called_off_is_gone() -> None:
    store = cluster(HELD)
    asked(store, request_fence(store, CLOCK, "h1", name="eve", reason="smells of smoke"))
    told, host = asked(store, call_off_fence(store, CLOCK, "h1"))
    assert host.spec.fencing.requested == ""
    assert "comes back by itself" in told
    told, _ = asked(store, call_off_fence(store, CLOCK, "h1"))
    assert "nobody asks" in told


def test_an_order_that_is_given_while_another_one_is_called_off_stays() -> None:
    class Meanwhile(MemoryStore):
        asks = True

        async def replace(self, obj: R) -> R:
            if self.asks and isinstance(obj, Hypervisor):
                self.asks = False
                host = await self.get(Hypervisor, "h1")
                fencing = msgspec.structs.replace(host.spec.fencing, requested="3|ann|sparks")
                await super().replace(
                    msgspec.structs.replace(host, spec=msgspec.structs.replace(host.spec, fencing=fencing))
                )
            return await super().replace(obj)

    store = cluster(HELD, requested="3|eve|smells of smoke", kind=Meanwhile)
    told, host = asked(store, call_off_fence(store, CLOCK, "h1"))
    assert host.spec.fencing.requested == "3|ann|sparks"
    assert "asked anew" in told


def test_an_order_about_an_earlier_epoch_is_left_where_it_is() -> None:
    later = cluster(msgspec.structs.replace(HELD, epoch=4), requested="3|eve|smells")
    told, host = asked(later, call_off_fence(later, CLOCK, "h1"))
    assert host.spec.fencing.requested == "3|eve|smells"
    assert "epoch 4" in told


def test_a_condemned_host_is_not_asked_for_twice() -> None:
    store = cluster(condemned())
    told, host = asked(store, request_fence(store, CLOCK, "h1", name="eve", reason="smells"))
    assert "condemned already" in told
    assert host.spec.fencing.requested == ""


def test_a_host_that_runs_nothing_is_not_fenced() -> None:
    state: MemberState = "Released"
    store = cluster(msgspec.structs.replace(HELD, state=state))
    assert "nothing to fence" in str(refused(request_fence(store, CLOCK, "h1", name="eve", reason="x"), InUse))


def test_an_assertion_is_about_one_fence() -> None:
    store = cluster(condemned())
    _, host = asked(store, confirm_off(store, CLOCK, "h1", name="eve", reason="I pulled the plug"))
    assert host.spec.fencing.operator_proof == "h1.3.abcdef|eve|I pulled the plug"


def test_an_assertion_never_starts_a_fence() -> None:
    store = cluster(HELD)
    error = refused(confirm_off(store, CLOCK, "h1", name="eve", reason="off"), Refused)
    assert "not condemned" in str(error)


@pytest.mark.parametrize("words", ["", "  ", "a|b", "two\nlines", "x" * 501])
def test_names_and_reasons_are_single_lines_of_words(words: str) -> None:
    store = cluster(condemned())
    refused(confirm_off(store, CLOCK, "h1", name="eve", reason=words), Usage)
    refused(request_fence(store, CLOCK, "h1", name=words, reason="x"), Usage)


def test_a_host_without_membership_says_who_can_fence_it() -> None:
    store = MemoryStore(CLOCK, SeededIds(Random(1)))
    store.load([Hypervisor(metadata=ObjectMeta(name="h1"))])
    assert "our daemon" in str(refused(request_fence(store, CLOCK, "h1", name="eve", reason="x"), NotFound))
    assert "h2" in str(refused(request_fence(store, CLOCK, "h2", name="eve", reason="x"), NotFound))


async def test_maintenance_ends_by_itself_where_a_time_was_given() -> None:
    store = cluster(HELD)
    told = await set_maintenance(store, CLOCK, True, for_s=7200.0)
    found = await store.get(Cluster, "default")
    assert found.spec.maintenance
    assert found.spec.maintenance_until is not None
    assert "UTC" in told


def test_maintenance_of_one_host_leaves_the_others_alone() -> None:
    store = cluster(HELD)
    _, host = asked(store, set_maintenance(store, CLOCK, True, hosts=("h1",)))
    assert host.spec.fencing.maintenance
    _, host = asked(store, set_maintenance(store, CLOCK, False, hosts=("h1",)))
    assert not host.spec.fencing.maintenance
    refused(set_maintenance(store, CLOCK, True, hosts=("h9",)), NotFound)


def test_a_host_of_another_management_is_not_emptied_by_us() -> None:
    store = cluster(HELD, management="nova")
    assert "managed by nova" in str(refused(set_drain(store, CLOCK, "h1", True), Refused))


def test_a_host_whose_daemon_does_not_run_is_not_asked_to_do_anything() -> None:
    store = cluster(condemned())
    assert "does not run" in str(refused(set_drain(store, CLOCK, "h1", True), Refused))


def test_what_is_so_already_is_no_error_and_a_wish_on_its_way_is_taken_back() -> None:
    store = cluster(HELD)
    told, host = asked(store, set_drain(store, CLOCK, "h1", False))
    assert (told, host.spec.drain) == ("h1 is schedulable already", False)
    asked(store, set_drain(store, CLOCK, "h1", True))
    told, host = asked(store, set_drain(store, CLOCK, "h1", False))
    assert (told, host.spec.drain) == ("h1 is to be schedulable again", False)


def test_draining_and_arming_are_wishes() -> None:
    store = cluster(HELD)
    _, host = asked(store, set_drain(store, CLOCK, "h1", True))
    assert host.spec.drain
    _, host = asked(store, set_armed(store, CLOCK, "h1", True))
    assert host.spec.fencing.armed


def test_nobody_is_armed_on_an_embedded_store() -> None:
    class Embedded(MemoryStore):
        embedded = True

    store = Embedded(CLOCK, SeededIds(Random(1)))
    store.load([Hypervisor(metadata=ObjectMeta(name="h1"))])
    refusal = str(refused(set_armed(store, CLOCK, "h1", True), Refused))
    assert "embedded" in refusal
    assert "--accept-single-store" in refusal
    _, host = asked(store, set_armed(store, CLOCK, "h1", True, accept_single_store=True))
    assert host.spec.fencing.armed


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        (Timing(guard_timeout_s=16.9), "guard_timeout_too_short"),
        (Timing(guard_timeout_s=30.1), "guard_timeout_exceeds_silence"),
        (Timing(grace_s=1.0), "grace_too_short"),
    ],
)
def test_nobody_is_armed_with_a_timing_that_would_empty_hosts_for_nothing(timing: Timing, why: str) -> None:
    store = cluster(HELD)
    policy = Cluster(
        metadata=ObjectMeta(name="default"), spec=ClusterSpec(fencing=FencingPolicy(timings={"steady": timing}))
    )
    run(store.create(policy))
    error = refused(set_armed(store, CLOCK, "h1", True), Refused)
    assert why in str(error)
    assert "timings" in error.remedy
    assert not run(store.get(Hypervisor, "h1")).spec.fencing.armed


def test_who_begins_maintenance_is_told_whose_guards_go_on() -> None:
    store = cluster(HELD)
    told, _ = asked(store, set_maintenance(store, CLOCK, True))
    assert "armed" not in told
    asked(store, set_armed(store, CLOCK, "h1", True))
    for hosts in ((), ("h1",)):
        told, _ = asked(store, set_maintenance(store, CLOCK, True, hosts=hosts))
        assert "h1 is armed all the same" in told
        assert "disarm" in told


def test_maintenance_of_a_failure_domain_is_that_of_its_hosts_and_of_those_named_beside_it() -> None:
    store = MemoryStore(CLOCK, SeededIds(Random(1)))
    racks = {"h1": "r1", "h2": "r1", "h3": "r2", "h4": "r2"}
    store.load(
        [
            Hypervisor(metadata=ObjectMeta(name=name, labels={f"{DOMAIN_LABEL_PREFIX}rack": rack}))
            for name, rack in racks.items()
        ]
    )
    users = WriterStore(store, writer="users")

    async def scene() -> list[str]:
        hosts = await hosts_of_domains(users, ("rack=r1",), hosts=("h3", "h1"))
        await set_maintenance(users, CLOCK, True, hosts=hosts)
        return [one.name async for one in list_all(users, Hypervisor) if one.spec.fencing.maintenance]

    assert run(scene()) == ["h1", "h2", "h3"]
    for text, kind in (("rack=r9", NotFound), ("rack", Usage), ("=r1", Usage)):

        async def wrong(text: str = text) -> str:
            return str(await hosts_of_domains(users, (text,)))

        refused(wrong(), kind)


def test_power_controllers_in_maintenance_are_named_and_their_hosts_are_not() -> None:
    store = cluster(HELD)
    told, host = asked(store, set_power_maintenance(store, CLOCK, True, for_s=60.0, hosts=("h1",)))
    assert (host.spec.fencing.power_maintenance, host.spec.fencing.maintenance) == (True, False)
    assert "still condemned" in told
    _, host = asked(store, set_power_maintenance(store, CLOCK, False, hosts=("h1",)))
    assert not host.spec.fencing.power_maintenance
    refused(set_power_maintenance(store, CLOCK, True, hosts=()), Usage)


async def test_the_end_of_maintenance_says_what_is_still_in_it() -> None:
    store = cluster(HELD)
    await set_maintenance(store, CLOCK, True, hosts=("h1",))
    all_off = await set_maintenance(store, CLOCK, False)
    await set_maintenance(store, CLOCK, True)
    one_off = await set_maintenance(store, CLOCK, False, hosts=("h1",))
    assert all_off == "maintenance is off; but h1 is still in maintenance by name"
    assert one_off == "h1: maintenance is off; but that of all hosts is on until somebody ends it"


def test_a_host_that_is_not_armed_is_not_disarmed() -> None:
    store = cluster(HELD)
    told, host = asked(store, set_armed(store, CLOCK, "h1", False))
    assert told == "h1 is not armed"
    assert not host.spec.fencing.armed


def test_the_end_of_maintenance_says_whose_power_controllers_still_get_no_command() -> None:
    store = cluster(HELD)

    async def scene() -> tuple[str, str]:
        await set_power_maintenance(store, CLOCK, True, hosts=("h1",))
        return await set_maintenance(store, CLOCK, False), await set_maintenance(store, CLOCK, False, hosts=("h1",))

    said = "maintenance is off; but the BMCs of h1 still get no command, see --power"
    assert run(scene()) == (said, f"h1: {said}")
