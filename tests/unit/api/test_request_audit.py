"""What of a request goes into the audit log: nothing that matters is routine, and no request spoils the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.api import GROUP, TOKENS, api
from tests.support.loops import run_real

from outlive.api import (
    CHANGED,
    DRY_RUN,
    IDENTITY,
    TARGET,
    Identity,
    RequestAudit,
    RequestTarget,
    Role,
    audit_entry,
    is_audited,
)
from outlive.base import Clock, SystemClock
from outlive.drivers import AuditFiles, read_lines
from outlive.drivers.audit_files import audit_files
from outlive.resources import Election, Fault, Hypervisor, HypervisorUsage, Membership, Resource, Secret, VirtualMachine
from outlive.resources.reasons import FaultCode
from outlive.runtime import (
    DAY_S,
    ENTRY_BYTES,
    FIELDS,
    SUMMARY,
    SURGE,
    WINDOW_S,
    AuditEntry,
    AuditSettings,
    Metrics,
    Refusals,
    TokenShares,
    audit_faults,
    verify,
)

LONG = "\x01" * 100_000
HOST = Identity("host.kvm-1", Role.HOST, "kvm-1")
COORDINATOR = Identity("host.kvm-1", Role.COORDINATOR, "kvm-1")
CONTROLLER = Identity("up-2", Role.CONTROLLER)


def scope(
    kind: type[Resource],
    name: str,
    identity: Identity | None,
    *fields: str,
    method: str = "PATCH",
    status: bool = False,
) -> dict[str, Any]:
    target, changed = RequestTarget(kind, name, status), (name, fields, "7")
    state = {IDENTITY: identity, TARGET: target, CHANGED: changed}
    return {"path": f"/{name}", "method": method, "state": state, "client": ("10.0.0.1", 1)}


@pytest.mark.parametrize(
    ("one", "written"),
    [
        (scope(Membership, "kvm-1", HOST, "record.seq", "record.nonce", "record.guard.timeoutS"), False),
        (scope(Membership, "kvm-1", HOST, "record.seq", "record.epoch", "record.bootId"), True),
        (scope(Membership, "kvm-1", HOST, "record.deadThrough", "record.proof"), True),
        (scope(Membership, "kvm-1", HOST, "record.machineId", method="POST"), True),
        (scope(Membership, "kvm-2", COORDINATOR, "record.state", "record.fence.id"), True),
        (scope(Membership, "kvm-2", COORDINATOR, "record.cut.through"), True),
        (scope(Election, "primary", COORDINATOR, "record.renewals", "record.nonce"), False),
        (scope(Election, "primary", COORDINATOR, "record.holder", "record.term", "record.nonce"), True),
        (scope(Hypervisor, "kvm-1", HOST, "status.instances", "status.capabilities.kernel", status=True), False),
        (scope(Hypervisor, "kvm-2", COORDINATOR, "status.rehearsed", "status.rehearsedSeq", status=True), False),
        (scope(Hypervisor, "kvm-2", CONTROLLER, "status.lost", status=True), True),
        (scope(Hypervisor, "kvm-1", HOST, "spec.drain.id"), True),
        (scope(VirtualMachine, "vm-1", HOST, "status.holders", status=True), True),
        (scope(HypervisorUsage, "kvm-1", HOST, "usage.load"), False),
        (scope(Fault, "f", CONTROLLER, method="DELETE"), False),
    ],
)
def test_only_what_is_written_all_the_time_is_left_out(one: dict[str, Any], written: bool) -> None:
    assert is_audited(one, 200, routine=False) is written
    assert is_audited(one, 200, routine=True)
    assert is_audited(one, 403, routine=False)


def test_what_was_only_tried_does_not_look_as_if_it_had_happened() -> None:
    one = scope(Secret, "ipmi", Identity("carol", Role.OPERATOR), "metadata.labels.a")
    one["state"][DRY_RUN] = True
    assert is_audited(one, 200, routine=False)
    assert audit_entry(one, 200, 0.0).verb == "dry-run update"


class Kept:
    """A log in memory."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def put(self, entry: AuditEntry) -> None:
        self.entries.append(entry)


def request_audit(log: Kept, shares: TokenShares | None = None, clock: Clock | None = None) -> RequestAudit:
    shares = shares or TokenShares(AuditSettings().token_bytes)
    return RequestAudit(log, Refusals(), shares, Metrics(), clock or SystemClock(), routine=False)


def test_a_flood_without_a_token_hides_nothing_that_is_tried_with_one() -> None:
    log = Kept()
    audit = request_audit(log)
    for _ in range(SURGE + 50):
        audit.record({"path": "/x", "method": "GET", "state": {}, "client": ("10.0.0.9", 1)}, 401)
    assert len(log.entries) == SURGE
    thief = scope(Secret, "ipmi", HOST, method="GET")
    for _ in range(SURGE + 7):
        audit.record(thief, 403)
    theirs = [one for one in log.entries if one.token == HOST.name]
    assert (len(theirs), theirs[0].omitted, theirs[1].omitted) == (SURGE, 50, 0)
    audit.record(scope(Membership, "kvm-2", COORDINATOR, "record.fence.id"), 200)
    assert log.entries[-1].omitted == 7


@pytest.mark.slow
def test_a_refusal_says_whose_token_it_was_also_where_its_role_may_nothing_of_the_kind() -> None:
    log = Kept()

    async def story() -> None:
        async with api(audit=log, cluster_key=lambda: "the key") as served:
            for method, path, role in (
                ("GET", "/cluster-key", Role.HOST),
                ("GET", "/cluster-key", Role.VIEWER),
                ("GET", f"{GROUP}/secrets", Role.JOIN),
                ("POST", "/cluster-key", Role.ADMIN),
            ):
                await served.call(method, path, role=role)
            await served.call("GET", "/cluster-key", headers={"Authorization": "Bearer nobody-knows-this-one"})

    run_real(story())
    assert [(one.token, one.status) for one in log.entries] == [
        ("host-of-tests", 403),
        ("viewer-of-tests", 403),
        ("join-of-tests", 403),
        ("", 401),
    ]


@pytest.mark.slow
def test_a_watch_of_secrets_is_written_down_when_it_begins() -> None:
    log = Kept()

    async def story() -> None:
        async with api(audit=log) as served:
            headers = {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
            url = f"{served.url}{GROUP}/secrets?watch=1&sendInitialEvents=true&allowWatchBookmarks=true"
            async with served.session.get(url, headers=headers) as answer:
                await answer.content.readline()
                assert [(one.verb, one.object, one.status) for one in log.entries] == [("watch", "Secret/", 200)]
            await served.call("GET", f"{GROUP}/flavors?watch=1&timeoutSeconds=1")

    run_real(story())
    assert len(log.entries) == 1


def test_nobody_fills_the_log_with_requests_that_fail() -> None:
    log = Kept()
    audit = request_audit(log)
    for status in (404, 405, 413, 429):
        audit.record({"path": "/x", "method": "POST", "state": {}, "client": ("10.0.0.9", 1)}, status)
    assert log.entries == []
    for _ in range(SURGE + 5):
        audit.record(scope(VirtualMachine, "vm-1", HOST, method="PUT"), 422)
    audit.record(scope(VirtualMachine, "vm-1", CONTROLLER), 409)
    assert (len(log.entries), log.entries[-1].status, log.entries[-1].omitted) == (SURGE + 1, 409, 5)


OPERATOR = Identity("carol", Role.OPERATOR)
WIDE = tuple(f"metadata.annotations.{'a' * 200}/{number:02d}" for number in range(FIELDS))
"""The largest change that a write makes of an object's fields."""


def test_dry_runs_do_not_fill_the_log() -> None:
    log = Kept()
    audit = request_audit(log)
    tried = scope(VirtualMachine, "vm-1", OPERATOR, *WIDE)
    tried["state"][DRY_RUN] = True
    for _ in range(SURGE + 50):
        audit.record(tried, 200)
    assert len(log.entries) == SURGE
    audit.record(scope(VirtualMachine, "vm-1", OPERATOR), 200)
    assert log.entries[-1].omitted == 50


class StandingClock(SystemClock):
    """A clock that is set."""

    at = 1_000_000.0

    def now(self) -> float:
        return self.at


def test_no_token_writes_more_than_its_share_and_what_is_counted_is_told() -> None:
    log, clock, shares = Kept(), StandingClock(), TokenShares(20_000)
    audit = request_audit(log, shares, clock)
    for _ in range(100):
        audit.record(scope(VirtualMachine, "vm-1", OPERATOR, *WIDE), 200)
    written = [one for one in log.entries if one.verb == "update"]
    assert 5 <= len(written) < 10
    (first,) = (one for one in log.entries if one.verb == SUMMARY)
    assert (first.token, first.counts, first.omitted) == ("carol", ("update VirtualMachine 1",), 1)
    clock.at += WINDOW_S
    audit.record(scope(VirtualMachine, "vm-2", CONTROLLER, "spec.powerState"), 200)
    other, summary = log.entries[-2:]
    assert (other.token, other.object) == (CONTROLLER.name, "VirtualMachine/vm-2")
    assert summary.omitted == 99 - len(written)
    assert summary.counts == (f"update VirtualMachine {99 - len(written)}",)
    assert shares.describe(clock.at) == f"{100 - len(written)} of carol"
    (fault,) = audit_faults(omitted=0, failure="", surge="", summarized=shares.describe(clock.at))
    assert fault.code == FaultCode.AUDIT_SUMMARIZED
    assert shares.take_summaries(clock.at, ended=True) == []
    clock.at += DAY_S
    audit.record(scope(VirtualMachine, "vm-1", OPERATOR), 200)
    assert log.entries[-1].verb == "update"
    assert shares.describe(clock.at) == ""


def test_what_changes_nothing_takes_at_most_half_of_a_share() -> None:
    log = Kept()
    audit = request_audit(log, TokenShares(20_000), StandingClock())
    for _ in range(SURGE):
        audit.record(scope(VirtualMachine, "vm-1", OPERATOR, *WIDE), 403)
    audit.record(scope(VirtualMachine, "vm-1", OPERATOR, "spec.powerState"), 200)
    assert (log.entries[-1].verb, log.entries[-1].status) == ("update", 200)


def test_routine_takes_no_room_from_what_is_none() -> None:
    log = Kept()
    shares = TokenShares(20_000)
    audit = RequestAudit(log, Refusals(), shares, Metrics(), StandingClock(), routine=True)
    for _ in range(SURGE):
        audit.record(scope(HypervisorUsage, "kvm-1", HOST, "usage.load"), 200)
    audit.record(scope(Membership, "kvm-1", HOST, "record.epoch"), 200)
    assert log.entries[-1].object == "Membership/kvm-1"
    assert shares.describe(StandingClock.at)


def test_a_summary_that_waits_is_written_when_the_server_stops() -> None:
    shares = TokenShares(0)
    for _ in range(3):
        assert not shares.take(audit_entry(scope(VirtualMachine, "vm-1", OPERATOR), 200, 0.0), 0.0, changed=True)
    assert shares.take_summaries(-1.0) == []
    assert [one.omitted for one in shares.take_summaries(-1.0, ended=True)] == [3]


def test_no_token_makes_the_default_log_forget_what_is_to_be_kept() -> None:
    settings = AuditSettings()
    assert (settings.token_bytes * (float(settings.keep) / DAY_S + 1)) < 0.6 * settings.files * settings.file_size


def test_no_entry_is_large() -> None:
    long = Identity("\U0001f600" * 1000, Role.OPERATOR)
    for text in (LONG, "\U0001f600" * 5000, '"' * 5000, "\udc80" * 5000):
        one = audit_entry(scope(VirtualMachine, text, long, *[text] * 2 * FIELDS), 200, 0.0)
        assert len(msgspec.json.encode(one)) < ENTRY_BYTES
        assert one.fields[-1].endswith(" more")


def test_long_names_of_fields_do_not_make_the_log_look_changed(tmp_path: Path) -> None:
    one = scope(VirtualMachine, "vm", CONTROLLER, *(f"spec.extraSpecs.{i}{LONG}" for i in range(2 * FIELDS)))
    files = AuditFiles(tmp_path, AuditSettings())
    files.put(audit_entry(one, 200, 0.0))
    files.put(AuditEntry(at=audit_entry(one, 200, 0.0).at, verb="get", object="/\udc80", status=403))
    files.put(audit_entry(one, 200, 0.0))
    files.close()
    assert verify(read_lines(audit_files(tmp_path)))[0] == 2
    assert files.omitted == 1
