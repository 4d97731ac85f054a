"""The self-check of a LIQUID service: what it tolerates, what it does not, and that it leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.loops import run

from outlive.base import LoopClock
from outlive.commitments import LiquidProbe, ProbeFailed, ProbeSettings

RAM = {"displayName": "", "unit": "GiB", "hasCapacity": True, "hasQuota": True, "attributes": {}}
INFO = {"version": 7, "resources": {"hw_version_g_ram": {**RAM, "handlesCommitments": True}, "other": RAM}}
Answer = Callable[[str, str, Any], tuple[int, Any]]


class Scripted:
    """A LIQUID service that answers as the test says, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[Any] = []
        self.there: set[str] = set()
        """Commitments that it has accepted and that were not deleted."""

    async def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        asked = json.loads(body) if body else None
        self.asked.append((path, asked))
        status, answer = self._answer(method, path, asked)
        if status == 200 and path.endswith("change-commitments") and not answer and not asked["dryRun"]:
            for one in changes(asked):
                (self.there.discard if one["newStatus"] is None else self.there.add)(one["uuid"])
        return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def changes(asked: Any) -> list[Any]:
    (project,) = asked["byProject"].values()
    (resource,) = project["byResource"].values()
    found: list[Any] = resource["commitments"]
    return found


def works(_method: str, path: str, _asked: Any) -> tuple[int, Any]:
    if path.endswith("/info"):
        return 200, INFO
    return (200, {"infoVersion": 7, "resources": {}}) if path.endswith("report-usage") else (200, {})


def full(_method: str, path: str, asked: Any) -> tuple[int, Any]:
    if path.endswith("change-commitments") and any(one["newStatus"] == "confirmed" for one in changes(asked)):
        return 200, {"rejectionReason": "1 commitment(s) failed:\n- commitment x: insufficient capacity: 0/2"}
    return works(_method, path, asked)


def checked(answer: Answer, *, cleanup: bool = True) -> tuple[Scripted, list[str], str]:
    """The service afterwards, what was noted, and what failed."""
    service, notes, failed = Scripted(answer), list[str](), list[str]()

    async def scene() -> None:
        settings = ProbeSettings(project="p", zones=("a", "b"), cleanup=cleanup)
        try:
            await LiquidProbe(service, settings, clock=LoopClock(), note=notes.append).run()
        except ProbeFailed as error:
            failed.append(error.message)

    run(scene())
    return service, notes, failed[0] if failed else ""


def test_use_is_noted_with_how_much_of_it_is_committed() -> None:
    vms = [{"id": "v", "name": "n", "attributes": {"commitment_id": one}} for one in ("x", None, None)]
    flavor = {"name": "f", "vcpu": 1, "ram_mib": 1024, "disk_gib": 0}
    for one in vms:
        one["attributes"] |= {"status": "ACTIVE", "flavor": flavor, "os_type": "unknown"}  # type: ignore[operator]
    used = {
        "hw_version_g_ram": {"perAZ": {"a": {"usage": 12}, "b": {"usage": 12}}},
        "hw_version_g_instances": {"perAZ": {"a": {"usage": 3, "subresources": vms}}},
    }

    def answer(method: str, path: str, asked: Any) -> tuple[int, Any]:
        if path.endswith("report-usage"):
            return 200, {"infoVersion": 7, "resources": used}
        return works(method, path, asked)

    _, notes, failed = checked(answer)
    assert failed == ""
    assert "usage in a: 12 of hw_version_g_ram, 3 VMs, 1 committed, 2 paid as they go" in notes


def test_a_batch_of_which_nobody_knows_whether_it_counts_is_deleted_whole() -> None:
    def lost(method: str, path: str, asked: Any) -> tuple[int, Any]:
        if path.endswith("change-commitments") and len(changes(asked)) == 2 and changes(asked)[0]["newStatus"]:
            return 500, b"the outcome of a write is not known, retry"
        return works(method, path, asked)

    service, _, failed = checked(lost)
    assert "was answered 500" in failed
    assert [one["newStatus"] for one in changes(service.asked[-1][1])] == [None, None]


def test_a_service_that_works_passes_and_nothing_is_left() -> None:
    service, notes, failed = checked(works)
    assert failed == ""
    assert service.there == set()
    assert [note for note in notes if note.startswith("batch")] == [
        "batch of hw_version_g_ram in a: accepted",
        "batch of hw_version_g_ram in b: accepted",
    ]
    uuids = [one["uuid"] for path, asked in service.asked if asked and "byProject" in asked for one in changes(asked)]
    made = {uuid for uuid in uuids if uuid.startswith("e2e-dry")}
    assert len(made) == 2  # made in one virtual millisecond


def test_a_full_cloud_passes_and_nothing_is_left() -> None:
    service, notes, failed = checked(full)
    assert (failed, service.there) == ("", set())
    assert not any(note.startswith("usage") for note in notes)


def test_a_batch_has_the_sums_of_the_contract() -> None:
    service, _, _ = checked(works)
    batch = next(asked for _, asked in service.asked if asked and "byProject" in asked and len(changes(asked)) == 2)
    resource = batch["byProject"]["p"]["byResource"]["hw_version_g_ram"]
    assert (resource["totalConfirmedBefore"], resource["totalConfirmedAfter"]) == (0, 4)
    assert [(one["oldStatus"], one["newStatus"], one["amount"]) for one in resource["commitments"]] == [
        ("pending", "confirmed", 3),
        (None, "confirmed", 1),
    ]
    assert batch["infoVersion"] == 7


def test_what_an_accepted_batch_made_stays_where_that_is_wanted() -> None:
    service, _, failed = checked(works, cleanup=False)
    assert failed == ""
    assert len(service.there) == 4


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/info", (503, b"Service temporarily unavailable")),
        ("/info", (200, b"<html>")),
        ("change-commitments", (409, b"Version mismatch")),
        ("change-commitments", (200, {"rejectionReason": "flavor group not found: g"})),
        ("report-usage", (500, b"")),
    ],
)
def test_anything_else_fails(path: str, answer: tuple[int, Any]) -> None:
    service, _, failed = checked(lambda m, p, a: answer if p.endswith(path) else works(m, p, a))
    assert failed
    assert service.there == set()


def test_a_deletion_that_is_refused_fails_even_for_want_of_capacity() -> None:
    def sticky(method: str, path: str, asked: Any) -> tuple[int, Any]:
        if path.endswith("change-commitments") and any(one["newStatus"] is None for one in changes(asked)):
            return 200, {"rejectionReason": "insufficient capacity"}
        return works(method, path, asked)

    assert "was refused: insufficient capacity" in checked(sticky)[2]


def test_a_service_that_sells_nothing_is_only_warned_of() -> None:
    def unsold(method: str, path: str, asked: Any) -> tuple[int, Any]:
        return (
            (200, {"version": -1, "resources": {"other": RAM}})
            if path.endswith("/info")
            else works(method, path, asked)
        )

    _, notes, failed = checked(unsold)
    assert failed == ""
    assert len([note for note in notes if note.startswith("warning")]) == 2
