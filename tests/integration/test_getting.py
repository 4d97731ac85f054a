"""``outlive get`` in all its forms, and the questions of commands that cannot be undone, on a real store."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest
from tests.support.command import COMMAND, environment, imported, outlive

EVENT = {
    "apiVersion": "outlive.dev/v1alpha1",
    "kind": "Event",
    "regarding": {"kind": "Hypervisor", "name": "h1"},
    "note": "note",
    "source": "test",
    "firstSeen": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return imported(
        tmp_path,
        "name,cpu,memory\nh1,8,64Gi\nh2,16,128Gi\nh3,4,1Gi\n",
        "id,cpu,memory,host\nv1,4,8Gi,h1\nv2,2,512Mi,h2\nv3,1,16Gi,h2\n",
    )


def test_names_rows_without_titles_and_kinds(state: Path) -> None:
    assert outlive("get", "hosts", "-o", "name", "--state-dir", state).out == "".join(
        f"hypervisor/{name}\n" for name in ("h1", "h2", "h3")
    )
    rows = outlive("get", "vms", "--no-headers", "--state-dir", state).out.splitlines()
    assert [row.split()[0] for row in rows] == ["v1", "v2", "v3"]
    kinds = outlive("get").out
    assert "virtualmachines" in kinds
    assert "vms" in kinds
    assert "hypervisors" in outlive("get", "-o", "name").out.splitlines()


def test_rows_come_in_the_order_of_a_field_and_a_field_that_is_none_is_named(state: Path) -> None:
    for path in (".spec.resources.memory", "spec.resources.memory", "{.spec.resources.memory}"):
        out = outlive("get", "vms", "--no-headers", "--sort-by", path, "--state-dir", state).out
        assert [row.split()[0] for row in out.splitlines()] == ["v2", "v1", "v3"]
    wrong = outlive("get", "vms", "--sort-by", ".spec.memry", "--state-dir", state)
    assert wrong.code == 3
    assert "there is no field 'memry'" in wrong.line


def test_an_empty_list_is_a_sentence_for_people_and_nothing_for_programs(state: Path) -> None:
    assert outlive("get", "tokens", "--state-dir", state).out == "there are no tokens\n"
    assert outlive("get", "vms", "-l", "a=b", "--state-dir", state).out == (
        "there are no virtualmachines with the labels a=b\n"
    )
    assert outlive("get", "tokens", "--no-headers", "--state-dir", state).out == ""
    assert outlive("get", "tokens", "-o", "name", "--state-dir", state).out == ""
    assert json.loads(outlive("get", "tokens", "-o", "json", "--state-dir", state).out)["items"] == []


def test_events_come_in_the_order_of_time(state: Path, tmp_path: Path) -> None:
    for name, reason, year in (("a", "Last", 2026), ("b", "First", 2024), ("c", "Second", 2025)):
        event = {**EVENT, "metadata": {"name": name}, "reason": reason, "lastSeen": f"{year}-01-01T00:00:00Z"}
        (tmp_path / "event.json").write_text(json.dumps(event))
        assert outlive("apply", "-f", tmp_path / "event.json", "--state-dir", state).code == 0
    out = outlive("get", "events", "--no-headers", "--state-dir", state).out
    shown = [word for word in out.split() if word in ("First", "Second", "Last")]
    assert shown == ["First", "Second", "Last"]


def answered(state: Path, text: str) -> tuple[int, str]:
    """The exit code of a deletion on a terminal where somebody types this, and what is left."""
    leader, follower = pty.openpty()
    pid = os.posix_spawn(
        COMMAND[0],
        [*COMMAND, "delete", "host", "h3", "--state-dir", str(state)],
        environment(),
        file_actions=[(os.POSIX_SPAWN_DUP2, follower, 0), (os.POSIX_SPAWN_DUP2, follower, 1)],
    )
    os.write(leader, text.encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(leader)
    os.close(follower)
    return code, outlive("get", "hosts", "-o", "name", "--state-dir", state).out


@pytest.mark.slow
def test_a_terminal_is_asked_before_something_is_deleted(state: Path) -> None:
    code, left = answered(state, "no\n")
    assert (code, "h3" in left) == (1, True)
    code, left = answered(state, "yes\n")
    assert (code, "h3" in left) == (0, False)


@pytest.mark.parametrize(
    "words", [("delete", "host", "h3"), ("maintenance", "on"), ("vm", "stop", "v1")], ids=lambda words: words[0]
)
def test_what_cannot_be_undone_asks_and_without_a_terminal_does_nothing(
    state: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = outlive("dump", "--state-dir", state).out.partition("\n")[2]
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        result = outlive(*words, "--state-dir", state)
    assert result.code == 2
    assert "this asks before it acts, and nobody is there to answer (give --yes)" in result.line
    assert outlive("dump", "--state-dir", state).out.partition("\n")[2] == before


def test_maintenance_with_an_end_and_an_answer_given_beforehand_ask_nothing(state: Path) -> None:
    assert outlive("maintenance", "on", "--for", "1h", "--state-dir", state).code == 0
    assert outlive("maintenance", "on", "--yes", "--state-dir", state).code == 0
    assert outlive("delete", "host", "h3", "--yes", "--state-dir", state).out == "hypervisor/h3 deleted\n"


def test_watching_ends_where_no_server_runs(state: Path) -> None:
    result = outlive("status", "--watch", "--state-dir", state)
    assert (result.code, result.out.startswith("NO SERVER RUNS (")) == (6, True)


def test_an_answer_where_a_server_has_run_and_none_runs_says_so_once(state: Path) -> None:
    said = "outlive: NO SERVER RUNS ("
    assert said not in outlive("get", "hosts", "--state-dir", state).err, "no server has run on it"
    (state / "token").write_text("of a server that ended\n")
    for words in (("get", "hosts"), ("failover", "coverage"), ("why", "h1"), ("host", "list")):
        result = outlive(*words, "--state-dir", state)
        assert result.err.count(said) == 1, (words, result)
        assert "NO SERVER" not in result.out
    assert said not in outlive("status", "--state-dir", state).err
