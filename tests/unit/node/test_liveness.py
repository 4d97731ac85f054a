"""What is printed of hosts and VMs is what is known at that moment, with its age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from outlive.node import (
    HostLife,
    HostLiveness,
    VmLife,
    host_liveness,
    observed_ready,
    proof_due,
    sight_without_server,
    vm_liveness,
)
from outlive.node.fencing import Departure, departure_of
from outlive.resources import (
    HEARD,
    Assigned,
    Cluster,
    Condition,
    FencePhase,
    FenceRecord,
    FencingSpec,
    GuardRecord,
    Holder,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    Management,
    MemberRecord,
    Membership,
    Migration,
    MigrationPhase,
    ObjectMeta,
    Proof,
    Recovery,
    RecoveryPhase,
    RecoveryStep,
    RenewalSight,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    with_condition,
)

NOW = datetime(2026, 1, 1, 0, 0, 40, tzinfo=UTC)
SINCE = NOW - timedelta(seconds=13)


def host(
    *, reason: str = "DaemonRuns", status: str = "True", management: Management = "node", answer_s: float | None = 1.0
) -> Hypervisor:
    ready = Condition(type="Ready", status=status, reason=reason, last_transition_time=SINCE)  # type: ignore[arg-type]
    return Hypervisor(
        metadata=ObjectMeta(name="kvm-4"),
        spec=HypervisorSpec(management=management, fencing=FencingSpec(driver="ipmi")),
        status=HypervisorStatus(conditions=(ready,), power_answer_s=answer_s, observed_at=SINCE),
    )


def member(**changes: Any) -> Membership:
    return Membership(metadata=ObjectMeta(name="kvm-4"), record=MemberRecord(machine_id="m", boot_id="b", **changes))


def text(sight: RenewalSight, found: Hypervisor | None = None, joined: Membership | None = None) -> str:
    return host_liveness("kvm-4", found or host(), joined or member(), Cluster(metadata=META), sight).text


META = ObjectMeta(name="cluster")
SEES = RenewalSight(at=NOW, started_s=900.0)
CONDEMNED: dict[str, Any] = {"state": "Revoked", "fence": FenceRecord(id="f", epoch=1, phase=FencePhase.CONDEMNED)}


def test_a_host_that_renews_is_alive() -> None:
    assert text(SEES) == "alive"


def test_silence_has_its_age_and_says_whether_the_host_went_in_order() -> None:
    sight = RenewalSight(at=NOW, silent={"kvm-4": 30.2})
    assert text(sight) == "silent for 30 s"
    went = host(status="False", reason="GoingDown")
    assert text(sight, went) == "silent for 30 s (it went down cleanly)"


def test_nobody_is_alive_whom_nobody_sees() -> None:
    assert text(sight_without_server(NOW)) == "unknown (server away)"
    assert text(RenewalSight(at=NOW, unheard=("kvm-4",), started_s=3.2)) == "unknown (server started 3 s ago)"


def test_death_and_departure_are_true_also_where_nobody_sees() -> None:
    proof = Proof(kind="power", at=SINCE)
    dead = member(state="Revoked", dead_through=1, proof=proof)
    assert text(sight_without_server(NOW), joined=dead) == "dead since 2026-01-01 00:00:27 UTC"
    left = host(status="False", reason="Released")
    assert text(SEES, left, member(state="Released")) == "stopped since 2026-01-01 00:00:27 UTC"


def test_a_condemned_host_says_by_when_its_proof_is_expected() -> None:
    condemned = host(status="False", reason="HostCondemned")
    # fast: condemned 7 s after the last renewal; silence 5 s, checks 2 s, three answers of 1 s and the time between
    due = proof_due(condemned, member(**CONDEMNED), None)
    assert due is not None
    assert SINCE < due < SINCE + timedelta(seconds=8)
    assert text(RenewalSight(at=SINCE), condemned, member(**CONDEMNED)) == f"condemned (proof by {due:%H:%M:%S})"
    assert text(SEES, condemned, member(**CONDEMNED)) == f"condemned (proof was due at {due:%H:%M:%S})"


def test_no_proof_is_promised_that_cannot_come() -> None:
    condemned = host(status="False", reason="HostCondemned", answer_s=None)
    assert proof_due(condemned, member(**CONDEMNED), None) is None
    distrusted = member(**CONDEMNED, distrusted=("power",))
    assert proof_due(host(status="False", reason="HostCondemned"), distrusted, None) is None
    armed = member(**CONDEMNED, guard=GuardRecord(armed=True))
    assert proof_due(condemned, armed, None) is not None
    unconfirmed: dict[str, Any] = {
        "state": "Revoked",
        "fence": FenceRecord(id="f", epoch=1, phase=FencePhase.UNCONFIRMED),
    }
    assert text(SEES, condemned, member(**unconfirmed)) == "condemned, not proven dead"


def test_hosts_of_others_are_not_watched() -> None:
    found = host_liveness("kvm-4", host(management="nova"), None, None, SEES)
    assert (found.text, found.watched) == ("not watched (managed by nova)", False)
    down = host_liveness("kvm-4", host(management="nova", status="False", reason="down"), None, None, SEES)
    assert down.text == "not watched (nova said Ready=False at 00:00:27)"


def lives(state: HostLife, words: str = "") -> HostLiveness:
    return HostLiveness(state=state, text=words or str(state), epoch=1)


ALIVE = {"kvm-4": lives(HostLife.ALIVE), "kvm-5": lives(HostLife.ALIVE)}


def vm(*, seen: str = "running", power: str = "running", **status: object) -> VirtualMachine:
    fields = {
        "assigned": Assigned(hypervisor="kvm-4"),
        "holders": (Holder(hypervisor="kvm-4", epoch=1, seen=seen, since=SINCE),),  # type: ignore[arg-type]
        "phase": "start",
        **status,
    }
    return VirtualMachine(
        metadata=ObjectMeta(name="vm-1"),
        spec=VirtualMachineSpec(power_state=power),  # type: ignore[arg-type]
        status=VirtualMachineStatus(**fields),  # type: ignore[arg-type]
    )


def test_a_vm_runs_where_its_host_lives_and_sees_it_run() -> None:
    found = vm_liveness(vm(), ALIVE)
    assert (found.state, found.since) == (VmLife.RUNNING, SINCE)
    assert vm_liveness(vm(seen=""), ALIVE).state is VmLife.STARTING


@pytest.mark.parametrize("state", [HostLife.SILENT, HostLife.CONDEMNED, HostLife.UNKNOWN])
def test_nobody_knows_how_a_vm_is_whose_host_nobody_hears(state: HostLife) -> None:
    found = vm_liveness(vm(), {"kvm-4": lives(state, "silent for 30 s")})
    assert (found.state, found.text) == (VmLife.UNKNOWN, "unknown: its host kvm-4 is silent for 30 s")
    assert vm_liveness(vm(seen=""), {"kvm-4": lives(state)}).state is VmLife.UNKNOWN
    assert vm_liveness(vm(holders=()), {"kvm-4": lives(state)}).state is VmLife.UNKNOWN


def test_a_vm_of_a_dead_host_is_down() -> None:
    found = vm_liveness(vm(), {"kvm-4": lives(HostLife.DEAD)})
    assert (found.state, found.reason) == (VmLife.DOWN, "host-dead")


def test_a_vm_that_recovery_does_not_start_waits_with_its_reason() -> None:
    step = RecoveryStep(at=SINCE, what="held")
    held = Recovery(fence="f", phase=RecoveryPhase.HELD, reason="no-room", steps=(step,))
    found = vm_liveness(vm(recovery=held), {"kvm-4": lives(HostLife.DEAD)})
    assert (found.state, found.text) == (VmLife.WAITING, "waiting: no-room since 2026-01-01 00:00:27 UTC")
    assert vm_liveness(vm(recovery=held), ALIVE).state is VmLife.RUNNING


def test_a_vm_that_nobody_wants_is_stopped() -> None:
    assert vm_liveness(vm(power="stopped", phase="stop", holders=()), ALIVE).state is VmLife.STOPPED
    assert vm_liveness(vm(phase="fail", holders=(), reason="crashed"), ALIVE).state is VmLife.DOWN


def test_the_source_of_a_move_that_is_over_runs_nothing() -> None:
    move = Migration(id="m", source="kvm-4", target="kvm-5", phase=MigrationPhase.TRANSFERRED)
    found = vm_liveness(vm(migration=move, holders=(Holder(hypervisor="kvm-4", epoch=1, seen="running"),)), ALIVE)
    assert found.state is not VmLife.RUNNING


def test_what_a_host_said_before_it_booted_it_says_no_more() -> None:
    again = HostLiveness(state=HostLife.ALIVE, text="alive", epoch=2, dead_through=1)
    assert vm_liveness(vm(), {"kvm-4": again}).state is VmLife.STARTING
    unproven = HostLiveness(state=HostLife.ALIVE, text="alive", epoch=2)
    assert vm_liveness(vm(), {"kvm-4": unproven}).state is VmLife.UNKNOWN


def test_a_vm_that_waits_without_a_proof_is_not_called_down() -> None:
    held = Recovery(fence="f", phase=RecoveryPhase.HELD, reason="store-restored")
    assert "it may still run" in vm_liveness(vm(recovery=held, holders=()), ALIVE).text


def test_a_vm_of_others_is_as_its_source_says() -> None:
    others = {"kvm-4": HostLiveness(state=HostLife.UNKNOWN, text="not watched (managed by nova)", watched=False)}
    found = vm_liveness(vm(holders=(), phase="ACTIVE"), others)
    assert (found.state, found.text) == (VmLife.RUNNING, "running, as its source says")
    assert vm_liveness(vm(holders=(), phase="SHUTOFF"), others).state is VmLife.STOPPED


def test_while_the_server_is_away_nobody_knows_what_a_source_says_of_its_hosts_and_vms() -> None:
    found = host_liveness("kvm-4", host(management="nova"), None, None, sight_without_server(NOW))
    assert (found.text, found.watched) == ("unknown (server away)", False)
    of_it = vm_liveness(vm(holders=(), phase="ACTIVE"), {"kvm-4": found})
    assert (of_it.state, of_it.text) == (VmLife.UNKNOWN, "unknown: its host is unknown (server away)")


READY_BEFORE = [
    ("True", "DaemonRuns"),
    ("True", HEARD),
    ("False", "GoingDown"),
    ("False", "Stopping"),
    ("False", "NotMember"),
    ("Unknown", "HostSilent"),
    ("False", "HostCondemned"),
    ("False", "HostDead"),
]


@pytest.mark.parametrize("state", list(HostLife))
@pytest.mark.parametrize(("status", "reason"), READY_BEFORE)
def test_how_a_host_said_that_it_goes_reads_the_same_after_whatever_the_server_writes(
    state: HostLife, status: str, reason: str
) -> None:
    before = host(status=status, reason=reason)
    ready = observed_ready(before, lives(state), NOW)
    if ready is None:
        return
    after = with_condition(before.status.conditions, ready)
    changed = msgspec.structs.replace(before, status=msgspec.structs.replace(before.status, conditions=after))
    assert departure_of(changed) is departure_of(before) is Departure.NONE
    assert observed_ready(changed, lives(state), NOW) is None


def test_the_server_takes_back_only_what_it_wrote() -> None:
    back = observed_ready(host(status="Unknown", reason="HostSilent"), lives(HostLife.ALIVE), NOW)
    assert back is not None
    assert (back.status, back.reason) == ("True", HEARD)
    assert observed_ready(host(status="False", reason="NotMember"), lives(HostLife.ALIVE), NOW) is None
    silent = observed_ready(host(), lives(HostLife.SILENT), NOW)
    assert silent is not None
    assert (silent.status, silent.reason) == ("Unknown", "HostSilent")


def test_a_host_of_which_nobody_knows_keeps_its_condition() -> None:
    assert observed_ready(host(), lives(HostLife.UNKNOWN), NOW) is None
