"""The executables of a DRBD cluster that is not there, as programs use them; several processes share one cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.drbd import DrbdLab
from lab.processes import LabError, until

NODES = ("n1", "n2", "n3")
pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[DrbdLab]:
    with DrbdLab(tmp_path / "drbd", NODES) as lab:
        lab.create("r0", NODES)
        yield lab


def ended(lab: DrbdLab, node: str, *words: str, tool: str = "drbdsetup") -> subprocess.CompletedProcess[str]:
    return subprocess.run([lab.program(node, tool), *words], capture_output=True, text=True, timeout=20)


def status(lab: DrbdLab, node: str) -> dict[str, Any]:
    (found,) = json.loads(ended(lab, node, "status", "r0", "--json").stdout)
    return dict(found)


def test_commands_print_what_the_model_prints(lab: DrbdLab) -> None:
    for words, text in (
        (("status", "--json"), lab.call("status_text", "n1")),
        (("status", "r0", "--json"), lab.call("status_text", "n1", "r0")),
        (("show", "r0", "--json"), lab.call("show_text", "n1", "r0")),
        (("events2", "--now", "all"), lab.call("events_text", "n1")),
    ):
        done = ended(lab, "n1", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, text, "")


def test_exit_codes_are_those_of_the_real_tool(lab: DrbdLab) -> None:
    assert ended(lab, "n1", "status", "other", "--json").returncode == 10
    assert ended(lab, "n1", "frobnicate").returncode == 20
    assert ended(lab, "n1", "primary", "r0").returncode == 0
    refused = ended(lab, "n2", "primary", "r0")
    assert (refused.returncode, refused.stderr) == (
        11,
        "r0: State change failed: (-1) Multiple primaries not allowed by config\n",
    )
    assert ended(lab, "n1", "secondary", "r0").returncode == 0
    assert status(lab, "n1")["role"] == "Secondary"


def test_without_the_module_status_fails_and_show_prints_nothing(lab: DrbdLab) -> None:
    assert lab.proc_file("n1").exists()
    lab.unload("n1")
    assert not lab.proc_file("n1").exists()
    assert ended(lab, "n1", "status", "--json").returncode == 20
    done = ended(lab, "n1", "show", "--json")
    assert (done.returncode, done.stdout) == (0, "")
    assert ended(lab, "n2", "status", "--json").returncode == 0


def test_primary_that_is_isolated_freezes_and_the_others_take_over(lab: DrbdLab) -> None:
    opener = lab.open("n1", "r0")
    assert lab.write(opener)
    lab.isolate("n1")
    frozen = lab.start_write(opener)
    until(lambda: status(lab, "n1")["suspended-quorum"], "n1 loses quorum", 10)
    assert not lab.wait_write(frozen, 0.1)
    until(lambda: ended(lab, "n2", "primary", "r0").returncode == 0, "n2 is promoted", 10)
    assert ended(lab, "n1", "secondary", "--force", "r0").returncode == 0
    with pytest.raises(LabError, match="I/O error"):
        lab.wait_write(frozen, 5.0)
    assert status(lab, "n1")["force-io-failures"]
    lab.close(opener)
    lab.rejoin("n1")
    until(lambda: status(lab, "n1")["connections"][0]["peer-role"] == "Primary", "n1 is back", 10)
    assert [write["survives"] for write in lab.call("list_writes", "r0")] == [True]


def test_events_are_streamed_with_their_times_until_the_node_is_off(lab: DrbdLab) -> None:
    words = [lab.program("n2"), "events2", "--timestamps", "all"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as events:
        assert events.stdout is not None
        for line in events.stdout:
            if line.endswith("exists -\n"):
                break
        lab.open("n1", "r0")
        line = next(line for line in events.stdout if "role:" in line)
        stamp, _, rest = line.partition(" ")
        assert rest == "change resource name:r0 may_promote:no promotion_score:10103\n" or "role:Primary" in rest
        assert stamp.endswith("+00:00")
        lab.crash("n2")
        assert events.wait(10) == 20
    assert ended(lab, "n2", "status", "--json").returncode == 20
    lab.boot("n2")
    until(lambda: status(lab, "n2")["devices"][0]["disk-state"] == "UpToDate", "n2 is back", 10)


def test_commands_hang_and_print_garbage_when_they_are_told_to(lab: DrbdLab) -> None:
    lab.hang("n1")
    with subprocess.Popen([lab.program("n1"), "status", "--json"], stdout=subprocess.PIPE, text=True) as hung:
        with pytest.raises(subprocess.TimeoutExpired):
            hung.wait(0.5)
        assert ended(lab, "n2", "status", "--json").returncode == 0
        lab.hang("n1", False)
        assert hung.wait(10) == 0
    lab.garble("n1", "[{", times=2)
    assert [ended(lab, "n1", "status", "--json").stdout for _ in range(2)] == ["[{", "[{"]
    assert status(lab, "n1")["name"] == "r0"


def test_connection_ends_by_its_number_and_begins_again(lab: DrbdLab) -> None:
    lab.open("n1", "r0")
    assert ended(lab, "n1", "disconnect", "r0", "1").returncode == 0
    assert status(lab, "n1")["connections"][0]["connection-state"] == "StandAlone"
    assert status(lab, "n2")["devices"][0]["disk-state"] == "Outdated"
    assert ended(lab, "n1", "disconnect", "r0", "9").returncode == 10
    assert ended(lab, "n1", "adjust", "r0", tool="drbdadm").returncode == 0
    until(lambda: status(lab, "n2")["devices"][0]["disk-state"] == "UpToDate", "n2 is in sync", 10)


def test_io_is_suspended_and_resumed_by_command(lab: DrbdLab) -> None:
    opener = lab.open("n1", "r0")
    assert ended(lab, "n1", "suspend-io", "1000").returncode == 0
    write = lab.start_write(opener)
    assert not lab.wait_write(write, 0.1)
    assert status(lab, "n1")["suspended-user"]
    assert ended(lab, "n1", "resume-io", "r0", tool="drbdadm").returncode == 0
    assert lab.wait_write(write, 5.0)


def test_other_processes_change_the_same_cluster(lab: DrbdLab) -> None:
    program = (
        f"from pathlib import Path; from lab.drbd import DrbdLab; DrbdLab(Path({str(lab.folder)!r})).cut('n1', 'n2')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
    until(lambda: status(lab, "n1")["connections"][0]["connection-state"] == "Connecting", "n1 loses n2", 10)
