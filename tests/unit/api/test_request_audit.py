"""What of a request goes into the audit log: nothing that matters is routine, and no request spoils the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.api import GROUP, api
from tests.support.loops import run_real

from outlive.api.audit import CHANGED, DRY_RUN, TARGET, RequestAudit, audit_entry, is_audited
from outlive.api.auth import Identity, Role
from outlive.api.middleware import IDENTITY
from outlive.api.requests import Target
from outlive.base.clock import SystemClock
from outlive.drivers.audit_files import AuditFiles, audit_files, read_lines
from outlive.resources import (
    Election,
    Fault,
    Hypervisor,
    HypervisorUsage,
    Membership,
    Resource,
    Secret,
    VirtualMachine,
)
from outlive.runtime.audit import FIELDS, SURGE, AuditEntry, AuditSettings, Refusals, verify
from outlive.runtime.metrics import Metrics

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
    target, changed = Target(kind, name, status), (name, fields, "7")
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


def test_a_flood_without_a_token_hides_nothing_that_is_tried_with_one() -> None:
    log = Kept()
    audit = RequestAudit(log, Refusals(), Metrics(), SystemClock(), routine=False)
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


def test_nobody_fills_the_log_with_requests_that_fail() -> None:
    log = Kept()
    audit = RequestAudit(log, Refusals(), Metrics(), SystemClock(), routine=False)
    for status in (404, 405, 413, 429):
        audit.record({"path": "/x", "method": "POST", "state": {}, "client": ("10.0.0.9", 1)}, status)
    assert log.entries == []
    for _ in range(SURGE + 5):
        audit.record(scope(VirtualMachine, "vm-1", HOST, method="PUT"), 422)
    audit.record(scope(VirtualMachine, "vm-1", CONTROLLER), 409)
    assert (len(log.entries), log.entries[-1].status, log.entries[-1].omitted) == (SURGE + 1, 409, 5)


def test_long_names_of_fields_do_not_make_the_log_look_changed(tmp_path: Path) -> None:
    one = scope(VirtualMachine, "vm", CONTROLLER, *(f"spec.extraSpecs.{i}{LONG}" for i in range(2 * FIELDS)))
    files = AuditFiles(tmp_path, AuditSettings())
    files.put(audit_entry(one, 200, 0.0))
    files.put(AuditEntry(at=audit_entry(one, 200, 0.0).at, verb="get", object="/\udc80", status=403))
    files.put(audit_entry(one, 200, 0.0))
    files.close()
    assert verify(read_lines(audit_files(tmp_path)))[0] == 2
    assert files.omitted == 1
