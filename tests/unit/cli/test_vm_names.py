"""Sentences and blocks name a VM by its display name, and by its id behind that where it is not beside it."""

from __future__ import annotations

from datetime import UTC, datetime

from outlive.cli import VmColumns, fault_lines
from outlive.resources import Fault, ObjectMeta, ObjectRef

WEB, DB = "9b2f0001-0000-4000-8000-000000000001", "9b2f0001-0000-4000-8000-000000000002"
NAMED = VmColumns({WEB: "web", DB: "db"})
AT = datetime(2026, 11, 27, tzinfo=UTC)


def test_the_vm_that_a_sentence_is_about_is_named_alone_and_others_with_their_ids() -> None:
    text = f"{WEB} shares slot-1 with {DB}, which runs on kvm-1."
    assert NAMED.replace_ids(text, WEB) == f"web shares slot-1 with db ({DB}), which runs on kvm-1."
    assert NAMED.replace_ids(f"{WEB}.") == f"web ({WEB})."


def test_a_command_in_a_sentence_can_be_typed_as_it_stands() -> None:
    text = f"{WEB} waits for {DB} (see outlive why {DB}; outlive vm start {WEB} --wait), and {DB} is down"
    assert NAMED.replace_ids(text, WEB) == (
        f"web waits for db ({DB}) (see outlive why {DB}; outlive vm start web --wait), and db ({DB}) is down"
    )


def test_what_is_no_id_stays_as_it_is() -> None:
    for text in (f"slot failover-{WEB} is free", f"vm-start-failed.{WEB}", "kvm-1: 64 of 128 (50 %)", ""):
        assert NAMED.replace_ids(text) == text
    assert VmColumns().replace_ids(f"{WEB} is down") == f"{WEB} is down"


def test_faults_are_blocks_that_say_which_are_over() -> None:
    def fault(code: str, name: str, *, acknowledged: bool = False, ended: bool = False) -> Fault:
        return Fault(
            metadata=ObjectMeta(name=f"{code}.{name}"),
            code=code,
            subject=ObjectRef(kind="VirtualMachine", name=name),
            message=f"{name} does not start",
            remedy="see its log",
            first_seen=AT,
            last_seen=AT,
            acknowledged=acknowledged,
            ended=ended,
        )

    faults = [fault("vm-fails", WEB), fault("vm-fails", DB, acknowledged=True), fault("vm-fails", "x", ended=True)]
    assert fault_lines(faults, NAMED) == [
        f"vm-fails: web ({WEB})",
        "  web does not start",
        "  what helps: see its log",
        "",
        f"vm-fails: db ({DB}) (acknowledged)",
        "  db does not start",
        "  what helps: see its log",
        "",
        "vm-fails: x (over)",
        "  x does not start",
        "  what helps: see its log",
    ]
