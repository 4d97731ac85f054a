"""The chain is made from what is stored, in order, and says what is left to be done."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.support.loops import run
from tests.support.sights import SEEN

from outlive.base import LoopClock, NotFound, Random, SeededIds, as_datetime
from outlive.cli import decision_table, explanation_lines
from outlive.failover import FailBackObstacle, FailBackResult
from outlive.node.fencing import CONDEMN, CondemnView
from outlive.recovery.why import WhyAnswer, explain
from outlive.resources import (
    Assigned,
    Condition,
    DecisionRecord,
    Failback,
    FencePhase,
    FencingSpec,
    Holder,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    MemberRecord,
    Membership,
    ObjectMeta,
    PreferredHosts,
    Proof,
    Recovery,
    RecoveryPhase,
    RecoveryStep,
    StartOrder,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    encode,
)
from outlive.resources.reasons import FailBackReason, make_reason
from outlive.runtime import DecisionLog, Trail
from outlive.store import MemoryStore

CLOCK = LoopClock()
HELD = MemberRecord(machine_id="m", boot_id="b", epoch=3, seq=41, nonce="abcdefgh")
VIEW = CondemnView(host="h1", record=HELD, version="77", unchanged_s=7.2, silence_s=7.0, observer="h2")
MOMENT = as_datetime(1_800_000_000.0)
PROOF = Proof(kind="power", evidence="said off twice", epoch=3, by="h2", fence="h1.3.abcdef", at=MOMENT)


def recovery(**changes: object) -> Recovery:
    whole = Recovery(
        fence="h1.3.abcdef",
        phase=RecoveryPhase.RECOVERED,
        origin="h1",
        slot="slot-1",
        host="h3",
        promised=True,
        proofs=(PROOF,),
        steps=(
            RecoveryStep(at=MOMENT, what="claimed", message="its slot slot-1 is claimed"),
            RecoveryStep(at=MOMENT, what="assigned", message="it is assigned to h3"),
            RecoveryStep(at=MOMENT, what="seen-running", message="it is seen running on h3"),
        ),
    )
    return msgspec.structs.replace(whole, **changes)


def explained(
    name: str,
    story: Recovery | None,
    *,
    dead_through: int = 3,
    order: StartOrder | None = None,
    view: CondemnView = VIEW,
    phase: FencePhase = FencePhase.CONDEMNED,
    distrusted: tuple[str, ...] = (),
) -> WhyAnswer:
    async def scene() -> WhyAnswer:
        store = MemoryStore(CLOCK, SeededIds(Random(1)))
        record = CONDEMN.attempt(view).record
        assert record is not None
        fence = msgspec.structs.replace(record.fence, phase=phase)
        proof = PROOF if dead_through else None
        record = msgspec.structs.replace(
            record, dead_through=dead_through, proof=proof, fence=fence, distrusted=distrusted
        )
        holders = (Holder(hypervisor="h3", member_uid="u", epoch=1, run_id="r", seen="running"),)
        status = VirtualMachineStatus(
            assigned=Assigned(hypervisor="h3"), holders=holders, recovery=story, start_order=order
        )
        store.load(
            [
                Membership(metadata=ObjectMeta(name="h1"), record=record),
                Membership(metadata=ObjectMeta(name="h3", uid="u"), record=MemberRecord(machine_id="n", boot_id="c")),
                VirtualMachine(metadata=ObjectMeta(name="vm-1"), status=status),
            ]
        )
        log, trail = DecisionLog(CLOCK), Trail(store, by="h2", clock=CLOCK)
        trail.follow(log)
        log.use(CONDEMN.decision, view, subject="h1")
        await trail.flush()
        return await explain(store, name, SEEN)

    return run(scene())


def test_the_chain_goes_from_the_last_renewal_to_the_running_vm() -> None:
    answer = explained("vm-1", recovery())
    texts = [link.text for link in answer.chain]
    assert texts[0] == "the last renewal of h1 that h2 saw is number 41 of epoch 3, version 77"
    assert "7.2 s (limit 7 s)" in texts[1]
    assert texts[2] == "proof of epoch 3 by power: said off twice, recorded by h2"
    assert texts[3:6] == ["its slot slot-1 is claimed", "it is assigned to h3", "it is seen running on h3"]
    assert texts[-1] == "h3 holds it in epoch 1, run r, seen running"
    assert answer.settled
    assert "in its promised slot slot-1" in answer.summary


def test_the_chain_says_who_else_saw_the_silence_and_why_there_were_fewer_looks() -> None:
    view = msgspec.structs.replace(VIEW, observers="h4 on switch s2 saw nothing either", looks="looked at once")
    answer = explained("vm-1", recovery(), view=view)
    assert [link.text for link in answer.chain][2:4] == [view.observers, view.looks]
    assert "; h4 on switch s2 saw nothing either; looked at once" in bytes(answer.decisions[0].output).decode()


def test_every_decision_of_the_chain_can_be_repeated() -> None:
    (decision,) = explained("vm-1", recovery()).decisions
    again = decision_table().decide(decision.decision, bytes(decision.input))
    assert json.loads(again) == json.loads(bytes(decision.output))


def test_a_vm_that_is_held_says_why_and_what_helps() -> None:
    answer = explained(
        "vm-1", recovery(phase=RecoveryPhase.HELD, reason="no-room", message="nobody has room", remedy="add a host")
    )
    assert not answer.settled
    assert answer.summary.endswith("is held: nobody has room")
    assert answer.remedy == "add a host"


def test_a_vm_that_never_lost_its_host_has_a_short_story() -> None:
    answer = explained("vm-1", None)
    assert answer.settled
    assert "never recovered" in answer.summary


def test_a_vm_in_a_slot_to_which_others_had_a_claim_says_so_though_the_slot_lists_it() -> None:
    assert (
        "in slot slot-1, to which other VMs had a claim as well" in explained("vm-1", recovery(contested=True)).summary
    )
    assert "in its promised slot slot-1" in explained("vm-1", recovery()).summary


def waiting(**how: Any) -> StartOrder:
    given = {"hypervisor": "h3", "waits_for": ("db",), "detail": "starts after db; it waits for at most 180 s"}
    return StartOrder(**{**given, **how})


def test_a_vm_that_waits_for_others_says_for_whom_and_how_to_start_it_now() -> None:
    answer = explained("vm-1", recovery(phase=RecoveryPhase.ASSIGNED, remedy=""), order=waiting())
    assert not answer.settled
    assert answer.summary.endswith("has its place on h3, and waits there for db")
    assert "on h3 it starts after db; it waits for at most 180 s" in [link.text for link in answer.chain]
    assert answer.remedy == "see outlive why db; to start it now, take db out of its spec.startAfter"
    short = explained("vm-1", None, order=waiting())
    assert not short.settled
    assert short.summary.endswith("it is assigned to h3, and waits there for db")


def test_a_vm_that_started_without_others_says_so_and_what_another_host_said_is_left_out() -> None:
    texts = [
        link.text for link in explained("vm-1", recovery(), order=waiting(waits_for=(), detail="starts alone")).chain
    ]
    assert "on h3 it starts alone" in texts
    answer = explained("vm-1", recovery(), order=waiting(hypervisor="h9"))
    assert not any("db" in link.text for link in answer.chain)
    assert answer.remedy == ""


def test_a_dead_host_says_by_what_proof_and_where_its_vms_are() -> None:
    answer = explained("h1", recovery())
    assert answer.summary == "h1 was condemned in epoch 3 and is proven dead by power"
    assert any("runs on h3 again" in link.text for link in answer.chain)
    assert answer.settled


def test_nobody_is_told_to_confirm_anything_while_proofs_are_looked_for() -> None:
    answer = explained("h1", None, dead_through=0)
    assert not answer.settled
    assert answer.remedy.startswith("nothing to do yet")
    assert "--confirm-off" not in answer.remedy


def test_a_host_without_a_proof_says_what_an_operator_can_do() -> None:
    answer = explained("h1", None, dead_through=0, phase=FencePhase.UNCONFIRMED)
    assert not answer.settled
    assert answer.remedy.endswith("outlive fence h1 --confirm-off --reason ...")


def test_a_host_that_somebody_asks_to_have_fenced_says_who_and_how_to_have_it_back() -> None:
    store = MemoryStore(CLOCK, SeededIds(Random(1)))
    record = CONDEMN.attempt(VIEW).record
    assert record is not None
    record = msgspec.structs.replace(record, fence=msgspec.structs.replace(record.fence, phase=FencePhase.UNCONFIRMED))
    spec = HypervisorSpec(fencing=FencingSpec(requested="3|eve|it smells"))
    meta = ObjectMeta(name="h1")
    store.load([Hypervisor(metadata=meta, spec=spec), Membership(metadata=meta, record=record)])
    answer = run(explain(store, "h1", SEEN))
    assert "eve asks to have it fenced: it smells; until it has booted" in answer.chain[-1].text
    assert "--confirm-off" in answer.remedy
    assert answer.remedy.endswith("outlive fence h1 --call-off")
    dead = MemoryStore(CLOCK, SeededIds(Random(1)))
    over = msgspec.structs.replace(record, dead_through=3, proof=PROOF)
    dead.load([Hypervisor(metadata=meta, spec=spec), Membership(metadata=meta, record=over)])
    assert "call-off" not in run(explain(dead, "h1", SEEN)).remedy


def test_an_unknown_name_is_no_traceback() -> None:
    with pytest.raises(NotFound, match="no VM and no host"):
        explained("nobody", None)


def test_the_answer_is_json_and_a_page_for_people() -> None:
    answer = explained("vm-1", recovery())
    assert json.loads(encode(answer))["decisions"][0]["decision"] == "safety.condemn"
    assert explanation_lines(answer, wide=True)[0] == f"{answer.summary}."


def test_of_a_host_that_nobody_watches_that_is_said() -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    store.load([Hypervisor(metadata=ObjectMeta(name="h1"))])

    async def scene(name: str) -> str:
        with pytest.raises(NotFound) as caught:
            await explain(store, name, SEEN)
        return str(caught.value)

    assert "no membership, so nobody watches it" in run(scene("h1"))
    assert "no VM and no host 'nobody'" in run(scene("nobody"))


def test_a_host_with_a_slow_power_controller_says_what_a_proof_costs() -> None:
    async def scene() -> WhyAnswer:
        store = MemoryStore(CLOCK, SeededIds(Random(1)))
        store.load(
            [
                Hypervisor(
                    metadata=ObjectMeta(name="h1"),
                    spec=HypervisorSpec(fencing=FencingSpec(driver="redfish")),
                    status=HypervisorStatus(power_answer_s=5.0),
                ),
                Membership(metadata=ObjectMeta(name="h1"), record=HELD),
            ]
        )
        return await explain(store, "h1", SEEN)

    (link,) = [link.text for link in run(scene()).chain if "BMC" in link.text]
    assert link == (
        "its BMC takes up to 5 s for an answer, so a proof by power comes up to 27 s = silence 5 s"
        " + checks 2 s + 3 s more until it has said what it controls + command 5 s + reading 5 s + 2 s + reading 5 s"
        " after the last renewal"
    )


@pytest.mark.parametrize(
    ("reason", "fencing", "says"),
    [
        (
            "GoingDown",
            FencingSpec(maintenance=True),
            "h1, and h1 went down cleanly; its VMs wait for it",
        ),
        (
            "GoingDown",
            FencingSpec(),
            "h1 went down cleanly; unless it is soon back",
        ),
        ("Stopping", FencingSpec(), "the daemon of h1 was stopped; unless it is soon back"),
    ],
)
async def test_a_vm_whose_host_went_in_good_order_says_for_what_it_waits(
    reason: str, fencing: FencingSpec, says: str
) -> None:
    store = MemoryStore(CLOCK, SeededIds(Random(1)))
    gone = Condition(type="Ready", status="False", reason=reason)
    store.load(
        [
            Hypervisor(
                metadata=ObjectMeta(name="h1"),
                spec=HypervisorSpec(fencing=fencing),
                status=HypervisorStatus(conditions=(gone,)),
            ),
            Membership(metadata=ObjectMeta(name="h1"), record=HELD),
            VirtualMachine(
                metadata=ObjectMeta(name="vm-1"), status=VirtualMachineStatus(assigned=Assigned(hypervisor="h1"))
            ),
        ]
    )
    of_vm, of_host = await explain(store, "vm-1", SEEN), await explain(store, "h1", SEEN)
    assert says in of_vm.summary
    assert not of_vm.settled
    assert of_vm.remedy
    assert of_host.summary in of_vm.summary


def test_a_proof_that_turned_out_wrong_is_said_of_the_host_with_the_vms_that_it_restarted() -> None:
    answer = explained("h1", recovery(), distrusted=("power",))
    texts = [link.text for link in answer.chain]
    assert "the proof by power was wrong for h1, and is trusted no more" in texts
    assert "restarted by it, and perhaps run twice: vm-1" in texts
    assert "outlive host trust h1 power" in answer.remedy
    assert not answer.settled
    other = explained("h1", recovery(), distrusted=("watchdog",))
    assert not [link for link in other.chain if "restarted by it" in link.text], "vm-1 was restarted by power"


def test_a_vm_that_was_restarted_by_a_wrong_proof_is_to_be_checked() -> None:
    warning = "the proof by power that h1 was dead turned out wrong: it may have run twice; check its file systems"
    assert warning in [link.text for link in explained("vm-1", recovery(), distrusted=("power",)).chain]
    for trusted in ((), ("watchdog",)):
        assert warning not in [link.text for link in explained("vm-1", recovery(), distrusted=trusted).chain]


def test_a_vm_that_does_not_go_back_to_the_host_that_it_prefers_says_what_blocks_it() -> None:
    blocked = FailBackObstacle(vm="vm-1", host="h1", why=make_reason(FailBackReason.COVERAGE, host="h1"))
    output = encode(FailBackResult(blocked=(blocked,))).decode()
    record = DecisionRecord(
        metadata=ObjectMeta(name="d1"), decision="failover.failback", by="ctl", at=MOMENT, output=output
    )

    def texts(host: str, failback: Failback) -> list[str]:
        async def scene() -> WhyAnswer:
            store = MemoryStore(CLOCK, SeededIds(Random(1)))
            spec = VirtualMachineSpec(failback=failback, preferred_hosts=PreferredHosts(weights={"h1": 10}))
            holder = Holder(hypervisor=host, member_uid="u", epoch=1, run_id="r", seen="running")
            status = VirtualMachineStatus(assigned=Assigned(hypervisor=host), holders=(holder,))
            store.load([record, VirtualMachine(metadata=ObjectMeta(name="vm-1"), spec=spec, status=status)])
            return await explain(store, "vm-1", SEEN)

        return [link.text for link in run(scene()).chain]

    said = str(blocked)
    assert said.startswith("vm-1 does not go back to h1, which it prefers: ")
    assert said in texts("h3", "auto")
    assert said not in texts("h1", "auto"), "it is there by now"
    assert said not in texts("h3", "never"), "nobody wants it to"
