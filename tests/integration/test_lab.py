"""The story of docs/walkthrough/lab.md on real hosts: power is cut, and every guest runs again where its slot was."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import story
from lab.cluster import Lab
from lab.processes import LabError

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/walkthrough/lab.md").read_text(encoding="utf-8")
LIMIT_S = 400.0

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.component("ipmi")]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    Lab(tmp_path).stop()


def told(state: Path, *words: str) -> str:
    command = [sys.executable, "-m", "lab.command", "--dir", str(state), *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sentences(text: str) -> list[str]:
    """What is told, without times and without which host was chosen for whom."""
    found = [match[1] for match in re.finditer(r"^ *[0-9.]+ s  (.+)$", text, re.MULTILINE)]
    plain = [re.sub(r"took [0-9.]+ s", "took N s", line) for line in found]
    return sorted(re.sub(r"(slot on|counts on) host-\d", r"\1 HOST", line) for line in plain)


def of_page(command: str) -> list[str]:
    return sentences(PAGE.partition(f"$ {command}\n")[2].partition("```")[0])


def test_guests_of_a_host_that_lost_power_run_again_in_their_promised_slots(state: Path) -> None:
    assert sentences(told(state, "start")) == of_page("scripts/lab start")
    assert sentences(told(state, "kill", "host-2")) == of_page("scripts/lab kill host-2")
    lab = Lab(state)
    assert [name for name, where in story.places(lab).items() if len(where) != 1 or where == ["host-2"]] == []
    assert {name: story.two_writers(lab.disk(name)) for name in lab.guests} == dict.fromkeys(lab.guests, "")
    assert len(story.turns(lab.disk("vm-2"))) == 2
    lab.stop()
    assert lab.switch.plugged() == []
    assert not lab.switch.group.exists()


def test_no_disk_has_two_writers_through_random_faults(state: Path) -> None:
    told(state, "start")
    said = told(state, "faults", "30", "--seed", "3")
    assert re.search(r"30 faults of seed 3: no disk had two writers in [1-9]\d* looks", said), said


def test_a_host_of_the_lab_has_a_disk_and_a_wall_clock_of_its_own(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    host, other = lab.hosts[:2]
    try:
        lab.switch.start()
        for one in (host, other):
            one.disk.mount()
            one.make()
        env = {one: [f"{name}={value}" for name, value in one.own_clock().items()] for one in (host, other)}
        host.power_on()
        other.power_on()
        host.disk.fill()
        host.step_clock(86_400)
        now, there, elsewhere = time.time(), *(float(one.run("env", *env[one], "date", "+%s")) for one in (host, other))
        assert (there - now, elsewhere - now) == (pytest.approx(86_400, abs=30), pytest.approx(0, abs=30))
        with pytest.raises(LabError, match="No space left"):
            host.run("cp", "/etc/hostname", "/var/something")
        other.run("cp", "/etc/hostname", "/var/something")
        host.disk.free()
        host.run("cp", "/etc/hostname", "/var/something")
    finally:
        lab.stop()
    assert not host.disk.folder.is_mount()
