"""States that are small, odd or broken: an answer or one line, on the right stream, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import imported, outlive

HOSTS = "name,zone,cpu,memory\n"
VMS = "id,flavor,cpu,memory,host\n"


def state_of(folder: Path, hosts: str, vms: str) -> Path:
    """The state that these rows make."""
    path = folder / "state.json"
    path.write_text(outlive("dump", "--state-dir", imported(folder, HOSTS + hosts, VMS + vms)).out)
    return path


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """One VM on the only host."""
    return state_of(tmp_path, "h1,z,64,256Gi\n", "v1,f,4,8Gi,h1\n")


@pytest.mark.parametrize(
    "question",
    [
        ("failover", "coverage"),
        ("failover", "plan"),
        ("whatif", "remove-host", "h1"),
        ("whatif", "add-host", "--like", "h1"),
        ("whatif", "drain", "h1"),
    ],
)
def test_a_no_is_one_document_whatever_was_logged_on_the_way(alone: Path, question: tuple[str, ...]) -> None:
    done = outlive(*question, "--state", alone, "-o", "json")
    assert done.code == 1
    json.loads(done.out)


def test_a_lonely_host_is_told_to_be_too_few_not_that_placement_is_away(alone: Path) -> None:
    done = outlive("failover", "coverage", "--state", alone, "-o", "json")
    (reported,) = json.loads(done.out)["uncovered"]
    assert reported["reason"] == "rules-exclude-all-hosts"
    assert done.err == ""


@pytest.mark.parametrize(
    ("hosts", "vms", "asked", "words"),
    [
        ("", "", ("--failures", "5"), "There is nothing that could fail."),
        ("h1,z,64,256Gi\n", "", ("--failures", "5"), "There is only 1 host; it fails."),
        ("h1,z,64,256Gi\n", "v1,f,4,8Gi,h1\n", ("h1",), "1 VM that needs slots goes down: 0 with"),
    ],
)
def test_failures_of_hardly_anything(tmp_path: Path, hosts: str, vms: str, asked: tuple[str, ...], words: str) -> None:
    assert words in outlive("survive", *asked, "--state", state_of(tmp_path, hosts, vms)).out
