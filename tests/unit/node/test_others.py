"""What a host that gets slow reads of the others, and how little of it where all of them are slow."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.support.loops import run

from outlive.base import LoopClock, Random, SeededIds, as_datetime
from outlive.node import FRESH_S, PAGE, HealthPeer, PeerHealth
from outlive.resources import (
    Condition,
    Degrading,
    HostUsage,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    HypervisorUsage,
    MemberRecord,
    Membership,
    ObjectMeta,
)
from outlive.store import MemoryStore

MOMENT = as_datetime(0.0)


class Counted(MemoryStore):
    """Counts what is listed."""

    pages = 0

    async def list(self, kind: Any, **more: Any) -> Any:
        self.pages += 1
        return await super().list(kind, **more)


def host(name: str, *, slow: bool = False, leaving: Any = "stays", management: Any = "node") -> Hypervisor:
    degrading = Degrading(since=MOMENT, causes=("disk",), leaving=leaving) if slow else None
    return Hypervisor(
        metadata=ObjectMeta(name=name),
        spec=HypervisorSpec(management=management),
        status=HypervisorStatus(degrading=degrading),
    )


def look(*objects: Any, living: bool = False) -> tuple[tuple[HealthPeer, ...], int]:
    async def looked() -> tuple[tuple[HealthPeer, ...], int]:
        store = Counted(LoopClock(), SeededIds(Random(1)))
        store.load(objects)
        others = PeerHealth(store, "me", LoopClock())
        found = await others.list_peers(0.25)
        return (await others.filter_living(found) if living else found), store.pages

    return run(looked())


def test_hosts_with_our_daemon_are_read_with_their_figures() -> None:
    usage = HypervisorUsage(metadata=ObjectMeta(name="a"), usage=HostUsage(scores={"disk": 40}))
    peers, _ = look(host("a"), host("b", slow=True), host("me", slow=True), host("cloud", management="nova"), usage)
    assert [(one.name, one.works, one.degrading, one.scores) for one in peers] == [
        ("a", True, False, {"disk": 40}),
        ("b", True, True, {}),
    ]


def test_a_host_that_takes_no_vms_now_does_not_count_as_working() -> None:
    off = Condition(type="HypervisorDisabled", status="True")
    disabled = msgspec.structs.replace(host("a"), status=HypervisorStatus(conditions=(off,)))
    drained = msgspec.structs.replace(host("b"), spec=HypervisorSpec(management="node", drain=True))
    assert [(one.name, one.works) for one in look(disabled, drained)[0]] == [("a", False), ("b", False)]


def test_one_page_is_read_where_it_shows_a_common_cause() -> None:
    assert look(*[host(f"h-{n}", slow=True) for n in range(3 * PAGE)])[1] == 1
    peers, pages = look(*[host(f"h-{n}", slow=n == 7) for n in range(3 * PAGE)])
    assert (len(peers), pages) == (3 * PAGE, 4)


def test_hosts_that_died_while_they_were_left_keep_nobody_waiting() -> None:
    held = Membership(metadata=ObjectMeta(name="alive"), record=MemberRecord(machine_id="m", boot_id="b", state="Held"))
    waiting = [host("alive", slow=True, leaving="leaves"), host("dead", slow=True, leaving="waits"), host("well")]
    assert [one.name for one in look(*waiting, held, living=True)[0]] == ["alive", "well"]


async def test_what_a_host_has_said_of_storage_counts_while_its_figures_are_new() -> None:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    usage = HypervisorUsage(metadata=ObjectMeta(name="a"), usage=HostUsage(reached=("rbd:vms",)))
    store.load([host("a"), usage])
    others, seen = PeerHealth(store, "me", clock), list[tuple[str, ...]]()

    async def see() -> None:
        (peer,) = await others.list_peers(0.25)
        seen.append(peer.reaches)

    await see()  # nobody knows how old that is
    written = await store.get(HypervisorUsage, "a")
    await store.replace(msgspec.structs.replace(written, usage=HostUsage(reached=("rbd:vms",), load=0.5)))
    await see()
    await clock.sleep(FRESH_S + 1.0)
    await see()
    assert seen == [(), ("rbd:vms",), ()]
