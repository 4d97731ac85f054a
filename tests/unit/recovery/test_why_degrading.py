"""People learn of a host that gets slow: by what, what becomes of its VMs, and what helps."""

from __future__ import annotations

import pytest
from tests.support.loops import run
from tests.support.sights import SEEN

from outlive.base import LoopClock, Random, SeededIds, as_datetime
from outlive.node import LeaveVerdict, describe_degrading, describe_outcome, suggest_remedy
from outlive.recovery.why import WhyAnswer, explain
from outlive.resources import Degrading, Hypervisor, HypervisorStatus, MemberRecord, Membership, ObjectMeta
from outlive.store import MemoryStore

SLOW = Degrading(since=as_datetime(60.0), causes=("store", "disk"), score=12, leaving="stays", why="no_room")


def asked(degrading: Degrading | None) -> WhyAnswer:
    async def answer() -> WhyAnswer:
        store = MemoryStore(LoopClock(), SeededIds(Random(1)))
        host = Hypervisor(metadata=ObjectMeta(name="h1"), status=HypervisorStatus(degrading=degrading))
        store.load([host, Membership(metadata=ObjectMeta(name="h1"), record=MemberRecord(machine_id="m", boot_id="b"))])
        return await explain(store, "h1", SEEN)

    return run(answer())


def test_why_says_it_of_a_host_that_gets_slow() -> None:
    found = asked(SLOW)
    assert found.chain[0].text == (
        "h1 degrades: the store answers it slowly and its disks make everything wait; its VMs stay, because no other "
        "host takes them (score 12 of 100)"
    )
    assert found.remedy == "check its way to the store and its disks; to empty it now: outlive drain h1"
    assert all("degrades" not in one.text for one in asked(None).chain)


@pytest.mark.parametrize("answer", [one for one in LeaveVerdict if one not in (LeaveVerdict.GO, LeaveVerdict.WELL)])
def test_every_reason_to_stay_has_words_of_its_own(answer: LeaveVerdict) -> None:
    said = describe_outcome(Degrading(since=SLOW.since, why=str(answer), leaving="stays"))
    assert said not in ("", "its VMs stay")


def test_nobody_is_asked_to_empty_a_host_whose_trouble_is_everybodys() -> None:
    shared = Degrading(since=SLOW.since, causes=("store",), leaving="stays", why="common_cause")
    assert "drain" not in suggest_remedy("h1", shared, together=4)
    assert "4 hosts" in suggest_remedy("h1", shared, together=4)
    assert describe_degrading("h1", Degrading(since=SLOW.since, leaving="leaves")) == (
        "h1 degrades: it gets slow; its VMs leave it by live moves"
    )
