"""The audit log: its lines prove each other, across files, restarts and crashes; a full disk refuses nobody."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import Refused, as_instant
from outlive.drivers import AuditFiles, read_lines
from outlive.drivers.audit_files import audit_files
from outlive.resources.reasons import FaultCode
from outlive.runtime import (
    DAY_S,
    SURGE,
    WINDOW_S,
    AuditChain,
    AuditEntry,
    AuditFilter,
    AuditSettings,
    Duration,
    Refusals,
    Size,
    audit_faults,
    parse_line,
    select,
    verify,
)

AT = datetime(2030, 1, 1, tzinfo=UTC)


def entry(what: str = "VirtualMachine/a", **more: object) -> AuditEntry:
    return AuditEntry(at=AT, verb="update", object=what, **{"token": "t", "status": 200, **more})  # type: ignore[arg-type]


def write(directory: Path, count: int, **settings: int) -> None:
    files = AuditFiles(directory, AuditSettings(**settings))  # type: ignore[arg-type]
    for _ in range(count):
        files.put(entry())
    files.close()
    assert not files.failure


def test_entries_follow_from_each_other_across_files_and_restarts(tmp_path: Path) -> None:
    for _ in range(3):
        write(tmp_path, 20, file_size=Size(4096))
    files = audit_files(tmp_path)
    assert len(files) > 2
    count, digest, *_ = verify(read_lines(files))
    assert count == 60
    assert verify(read_lines(files), digest)[:2] == (60, digest)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)


def test_old_files_go_and_the_rest_still_verifies(tmp_path: Path) -> None:
    write(tmp_path, 200, file_size=Size(4096), files=3)
    assert len(audit_files(tmp_path)) == 3
    assert 0 < verify(read_lines(audit_files(tmp_path)))[0] < 200


def test_a_log_that_forgets_entries_too_early_says_so_also_after_a_restart(tmp_path: Path) -> None:
    write(tmp_path, 200, file_size=Size(4096), files=3)
    kept = AuditFiles(tmp_path, AuditSettings(file_size=Size(4096), files=3, keep=Duration(DAY_S)))
    first = verify(read_lines(audit_files(tmp_path))).first
    now = as_instant(AT)
    assert kept.find_lost_begin(now + 60.0) == f"2030-01-01 00:00 UTC, entry {first}"
    assert kept.find_lost_begin(now + DAY_S) == ""
    kept.close()
    (found,) = audit_faults(omitted=0, failure="", surge="", lost_before=kept.find_lost_begin(now))
    assert found.code == FaultCode.AUDIT_LOST


def test_a_whole_log_has_forgotten_nothing(tmp_path: Path) -> None:
    write(tmp_path, 30, file_size=Size(4096))
    files = AuditFiles(tmp_path, AuditSettings())
    assert files.find_lost_begin(as_instant(AT)) == ""
    files.close()


def test_an_entry_that_was_there_before_is_asked_for_by_its_number(tmp_path: Path) -> None:
    write(tmp_path, 200, file_size=Size(4096), files=3)
    found = verify(read_lines(audit_files(tmp_path)))
    assert (found.begin, found.first + found.entries - 1) == (AT, 200)
    assert verify(read_lines(audit_files(tmp_path)), first=found.first) == found
    for gone in (found.first - 1, 201):
        with pytest.raises(Refused, match=f"entry {gone} is not there: the log has {found.first} to 200"):
            verify(read_lines(audit_files(tmp_path)), first=gone)


@pytest.mark.slow
@pytest.mark.parametrize("in_new_file", [True, False])
def test_a_crash_at_any_byte_of_the_last_line_costs_this_entry_and_the_log_says_so(
    tmp_path: Path, in_new_file: bool
) -> None:
    whole, size = tmp_path / "whole", Size(4096)
    for count in range(2, 60):
        shutil.rmtree(whole, ignore_errors=True)
        write(whole, count, file_size=size)
        *_, path = files = audit_files(whole)
        lines = path.read_bytes().splitlines(keepends=True)
        if len(files) == 2 and (len(lines) == 1) is in_new_file:
            break
    before = len(b"".join(lines[:-1]))
    for cut in range(len(lines[-1])):
        directory = tmp_path / "cut"
        shutil.copytree(whole, directory)
        os.truncate(directory / path.name, before + cut)
        torn = verify(read_lines(audit_files(directory)))
        assert (torn.entries, torn.omitted) == (count - 1, cut > 0)
        write(directory, 0, file_size=size)  # a server that ends before it writes anything
        write(directory, 3, file_size=size)
        assert verify(read_lines(audit_files(directory)))[0::4] == (count + 2, cut > 0)
        shutil.rmtree(directory)


def test_a_line_that_found_no_room_is_replaced_by_the_next_and_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, real, short = AuditFiles(tmp_path, AuditSettings()), os.write, [3, 0, 5]

    def write_some(handle: int, line: bytes) -> int:
        if not line.startswith(b'{"number"') or not short:
            return real(handle, line)
        return real(handle, line[: short.pop()])

    monkeypatch.setattr(os, "write", write_some)
    for _ in range(5):
        files.put(entry())
    files.close()
    found = verify(read_lines(audit_files(tmp_path)))
    assert (found.entries, found.omitted, files.omitted) == (2, 3, 3)


def test_what_was_cut_off_shows_to_somebody_who_kept_a_later_digest(tmp_path: Path) -> None:
    write(tmp_path, 5)
    digest = verify(read_lines(audit_files(tmp_path))).digest
    (path,) = audit_files(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert verify(read_lines([path]))[0] == 3
    with pytest.raises(Refused, match="no entry has the digest"):
        verify(read_lines([path]), digest)


def test_a_disk_that_does_not_take_entries_is_told_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    files = AuditFiles(directory, AuditSettings())
    directory.rmdir()
    directory.write_bytes(b"")  # no directory any more
    files.put(entry())
    files.close()
    assert files.failure
    assert files.omitted == 1


_chain = AuditChain()
LINES = [_chain.next_line(entry(f"VirtualMachine/{number}")) for number in range(6)]


def verified(lines: list[bytes]) -> int:
    return verify((str(number), line, False) for number, line in enumerate(lines))[0]


@given(st.integers(0, 5), st.data())
def test_no_line_is_changed_left_out_moved_or_put_in_unseen(index: int, data: st.DataObject) -> None:
    assert verified(LINES) == 6
    at = data.draw(st.integers(0, len(LINES[index]) - 2))
    changed = LINES[index][:at] + bytes([LINES[index][at] ^ 1]) + LINES[index][at + 1 :]
    with pytest.raises(Refused):
        verified([*LINES[:index], changed, *LINES[index + 1 :]])
    if 0 < index < 5:
        with pytest.raises(Refused):
            verified(LINES[:index] + LINES[index + 1 :])
    with pytest.raises(Refused):
        verified([*LINES[: index + 1], LINES[index], *LINES[index + 1 :]])


def test_entries_are_found_by_token_object_time_and_refusal() -> None:
    chain = AuditChain()
    lines = [
        chain.next_line(entry("VirtualMachine/web-1")),
        chain.next_line(entry("Hypervisor/kvm-1", token="u")),
        chain.next_line(entry("VirtualMachine/web-2", status=403, code="forbidden")),
        b"nonsense\n",
    ]

    def found(**wanted: object) -> list[str]:
        return [one.object for one in select(lines, AuditFilter(**wanted))]  # type: ignore[arg-type]

    assert found(object="virtualmachine/web") == ["VirtualMachine/web-1", "VirtualMachine/web-2"]
    assert found(token="u") == ["Hypervisor/kvm-1"]
    assert found(refused=True) == ["VirtualMachine/web-2"]
    assert found(since=AT.replace(year=2031)) == []
    assert parse_line(b"nonsense") is None


def test_a_surge_of_refusals_names_where_they_come_from_and_ends_with_its_time() -> None:
    refusals = Refusals()
    written = [refusals.add(float(number), "10.0.0.7") for number in range(SURGE + 10)]
    assert written.count(True) == SURGE
    assert refusals.describe_surge(SURGE + 10.0) == f"{SURGE + 10}, of them {SURGE + 10} from 10.0.0.7"
    assert refusals.describe_surge(SURGE + 11.0 + WINDOW_S) == ""
