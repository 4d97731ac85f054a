"""The story of docs/start/lab.md on real hosts: power is cut, and every guest runs again where its slot was."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import guest, story
from lab.cluster import Lab
from lab.faults import Judge
from lab.hosts import Host
from lab.processes import LabError, Process, until

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/start/lab.md").read_text(encoding="utf-8")
LIMIT_S = 600.0

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.component("ipmi")]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of one lab, which the first test that needs it starts; stopped, it leaves nothing behind."""
    folder = tmp_path_factory.mktemp("lab")
    lab = Lab(folder)
    yield folder
    lab.stop()
    assert lab.switch.plugged() == []
    assert not lab.switch.group.exists()
    assert not lab.disk_of_store.folder.is_mount()


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
    until(lambda: len(story.turns(lab.disk("vm-2"))) == 2, "it writes once more, in its second run", 30)


def test_no_disk_has_two_writers_through_random_faults(state: Path) -> None:
    told(state, "start")
    said = told(state, "faults", "12", "--seed", "3", "--together", "8")
    assert re.search(r"12 faults of seed 3: no disk had two writers in [1-9]\d* looks", said), said


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Lab]:
    """A lab of which only hosts run."""
    lab = Lab(tmp_path)
    try:
        lab.switch.start()
        for host in lab.hosts[:2]:
            host.disk.mount()
            host.make()
            host.own_clock()
            host.power_on()
        yield lab
    finally:
        lab.stop()
    assert not lab.hosts[0].disk.folder.is_mount()


def test_a_host_of_the_lab_has_a_disk_and_a_wall_clock_of_its_own(hosts: Lab) -> None:
    host, other = hosts.hosts[:2]
    env = [f"{name}={value}" for name, value in host.own_clock().items()]
    host.disk.fill()
    host.step_clock(86_400)
    now, there, elsewhere = time.time(), *(float(one.run("env", *env, "date", "+%s")) for one in (host, other))
    assert (there - now, elsewhere - now) == (pytest.approx(86_400, abs=30), pytest.approx(0, abs=30))
    with pytest.raises(LabError, match="No space left"):
        host.run("cp", "/etc/hostname", "/var/something")
    other.run("cp", "/etc/hostname", "/var/something")
    host.disk.free()
    host.run("cp", "/etc/hostname", "/var/something")


def test_the_judge_sees_a_second_qemu_of_a_guest_unless_a_controller_has_lied(hosts: Lab, tmp_path: Path) -> None:
    program = shutil.copy("/bin/sh", tmp_path / "qemu-system-none")
    for name in hosts.guests:
        guest.make_disk(hosts.disk(name))

    def begin(host: Host, name: str) -> None:
        command = host.inside(str(program), "-c", "sleep 60; true", "sh", f"guest={name},")
        Process(tmp_path / f"{name}.{host.name}").start(command, tmp_path / "log")
        until(lambda: host.name in story.places(hosts)[name], "it runs", 30)

    one, other = hosts.hosts[:2]
    judge = Judge(hosts)
    begin(one, "vm-1")
    begin(other, "vm-2")
    judge.look()
    assert judge.violations == {}
    hosts.controller(one).lie()
    judge.look()
    hosts.controller(one).lie(False)
    begin(other, "vm-1")
    judge.look()
    assert judge.violations == {}
    begin(one, "vm-2")
    judge.look()
    assert judge.violations == {"vm-2": "it has a QEMU on host-1 and on host-2"}
