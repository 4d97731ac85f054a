"""Health counts what matters, each by its own weight; covered says by what."""

from __future__ import annotations

from pathlib import Path

from outlive.node import HostLife, HostLiveness, VmLife
from outlive.recovery import (
    WEIGHTS,
    HealthIssue,
    count_issues,
    covered_by_hosts,
    is_provable,
    judge_health,
    view_coverage,
)
from outlive.resources import (
    Coverage,
    CoverageStatus,
    CoveredBy,
    FencingSpec,
    GuardRecord,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    MemberRecord,
    Membership,
    ObjectMeta,
)

NOW = 1_800_000_000.0


def lives(state: HostLife, *, watched: bool = True) -> HostLiveness:
    return HostLiveness(state=state, text=str(state), watched=watched)


def test_a_cluster_that_is_well_has_all_of_its_health() -> None:
    counts = count_issues([lives(HostLife.ALIVE)], [VmLife.RUNNING], uncovered=0, unprovable=0, still_s=1.0)
    assert judge_health([], counts).health == 100


def test_each_issue_takes_its_weight_and_never_more_than_its_most() -> None:
    for issue, weight in WEIGHTS.items():
        assert judge_health([], {issue: 1}).health == 100 - weight.each
        assert judge_health([], {issue: 1000}).health == 100 - weight.most
    assert judge_health([], dict.fromkeys(HealthIssue, 1000)).health == 0


def test_silent_and_unknown_hosts_waiting_and_unknown_vms_and_a_store_that_stands_still_count() -> None:
    hosts = [lives(HostLife.SILENT), lives(HostLife.UNKNOWN), lives(HostLife.UNKNOWN, watched=False)]
    vms = [VmLife.WAITING, VmLife.DOWN, VmLife.UNKNOWN, VmLife.STOPPED]
    counts = count_issues(hosts, vms, uncovered=3, unprovable=2, still_s=61.0)
    assert [counts[issue] for issue in HealthIssue] == [3, 2, 1, 1, 1, 2, 1]


def host(name: str = "h1", *, driver: str = "ipmi", rehearsed: str = "ok", proofs: int = 0) -> Hypervisor:
    spec = HypervisorSpec(management="node", fencing=FencingSpec(driver=driver, proofs=proofs))
    return Hypervisor(metadata=ObjectMeta(name=name), spec=spec, status=HypervisorStatus(rehearsed=rehearsed))


def member(*, armed: bool = False, **changes: object) -> Membership:
    record = MemberRecord(machine_id="m", boot_id="b", guard=GuardRecord(armed=armed), **changes)  # type: ignore[arg-type]
    return Membership(metadata=ObjectMeta(name="h1"), record=record)


def test_a_host_can_be_proven_dead_by_a_bmc_that_was_rehearsed_or_by_a_guard_that_is_armed() -> None:
    assert is_provable(host(), member(), None, NOW)
    assert not is_provable(host(rehearsed="does not answer"), member(), None, NOW)
    assert not is_provable(host(driver=""), member(), None, NOW)
    assert is_provable(host(driver=""), member(armed=True), None, NOW)


def test_a_kind_of_proof_that_was_wrong_proves_nothing_and_two_are_two() -> None:
    assert not is_provable(host(), member(distrusted=("power",)), None, NOW)
    assert not is_provable(host(proofs=2), member(), None, NOW)
    assert is_provable(host(proofs=2), member(armed=True), None, NOW)


def covered(vm: str, on: str, slot: str) -> Coverage:
    status = CoverageStatus(required=1, covered=True, host=on, slots=(slot,))
    return Coverage(metadata=ObjectMeta(name=vm), status=status)


def test_covered_says_by_what() -> None:
    hosts = {"h1": lives(HostLife.ALIVE), "h2": lives(HostLife.ALIVE), "n": lives(HostLife.UNKNOWN, watched=False)}
    reported = [covered("a", "h1", "s"), covered("b", "h2", "s"), covered("c", "n", "t")]
    by_host = {"h1": CoveredBy.RECOVERABLE, "h2": CoveredBy.UNPROVEN, "n": CoveredBy.RESERVED}
    view = view_coverage(reported, {"s": "h1", "t": "n"}, hosts, by_host)
    assert view.by == {CoveredBy.RESERVED: 1, CoveredBy.RECOVERABLE: 1, CoveredBy.UNPROVEN: 1}
    assert view.doubtful == {}


def test_hosts_of_others_are_reserved_only_and_hosts_without_a_ready_proof_are_unproven() -> None:
    of_others = Hypervisor(metadata=ObjectMeta(name="n"), spec=HypervisorSpec(management="nova"))
    not_rehearsed = host("h2", rehearsed="")
    its_member = Membership(metadata=ObjectMeta(name="h2"), record=member().record)
    found = covered_by_hosts([host("h1"), member(), not_rehearsed, its_member, of_others, host("h3")], NOW)
    assert found == {
        "h1": CoveredBy.RECOVERABLE,
        "h2": CoveredBy.UNPROVEN,
        "h3": CoveredBy.UNPROVEN,
        "n": CoveredBy.RESERVED,
    }


def test_what_lies_on_a_host_that_nobody_hears_of_is_not_called_covered() -> None:
    hosts = {"h1": lives(HostLife.SILENT), "h2": lives(HostLife.ALIVE)}
    reported = [covered("on-it", "h1", "s2"), covered("slot-on-it", "h2", "s1"), covered("elsewhere", "h2", "s2")]
    view = view_coverage(reported, {"s1": "h1", "s2": "h2"}, hosts, dict.fromkeys(hosts, CoveredBy.RECOVERABLE))
    assert view.doubtful == {"on-it": "h1", "slot-on-it": "h1"}
    assert sum(view.by.values()) == 1


def test_the_manual_has_the_weights() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/observing.md").read_text()
    for issue, weight in WEIGHTS.items():
        assert f"| {issue} | {weight.each} | {weight.most} |" in page
