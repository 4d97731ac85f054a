"""The server's disk is lost: from a backup the cluster comes back, while hosts and guests never stopped.

Real hosts with their own tokens and keys, real BMCs, real guests that write to their disks.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import story
from lab.cluster import Lab
from lab.processes import LabError, run, until

from outlive.drivers import ClusterKey
from outlive.resources import Secret, decode_as

pytestmark = [pytest.mark.component("libvirt"), pytest.mark.component("ipmi"), pytest.mark.slow]
LIMIT_S = 180.0
PASSPHRASE = "correct horse battery"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    try:
        for _ in made.start():
            pass
        until(lambda: all(len(where) == 1 for where in places(made).values()), "all guests run", LIMIT_S, 0.5)
        passphrase = made.state / "passphrase"
        passphrase.write_text(PASSPHRASE)
        passphrase.chmod(0o600)
        yield made
    finally:
        made.stop()


def places(lab: Lab) -> dict[str, list[str]]:
    return {name: list(where) for name, where in story.places(lab).items()}


def guests(lab: Lab) -> dict[str, dict[int, str]]:
    """Host → the processes of its guests."""
    return {host.name: {pid: name for pid, name in host.processes() if name.startswith("qemu")} for host in lab.hosts}


def program(lab: Lab, *words: str) -> str:
    """The command line on the server's machine, which needs no server."""
    command = str(Path(sys.executable).with_name("outlive"))
    return run(*lab.switch.inside("store", command, *words, "--state-dir", str(lab.state / "store")), limit_s=120)


def back_up(lab: Lab, name: str) -> Path:
    file = lab.state / name
    said = program(lab, "backup", str(file), "--passphrase-file", str(lab.state / "passphrase"))
    assert "keys (cluster-key, ca.pem, ca.key, server.pem, server.key)" in said
    return file


def lose_the_server(lab: Lab) -> None:
    """Its process and everything in its state directory."""
    lab.server.signal(signal.SIGKILL)
    until(lambda: not lab.server.pid, "the server is gone", 30)
    for one in (lab.state / "store").iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()


def restore(lab: Lab, file: Path) -> None:
    said = program(lab, "restore", str(file), "--passphrase-file", str(lab.state / "passphrase"))
    assert "\n1. outlive up --state-dir" in said, "keys and authority are there: nothing comes before"
    assert "3 memberships in the backup" in said
    lab.start_server()


def cluster(lab: Lab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab.outlive("get", "clusters", "default", "-o", "json"))
    return found["status"]


def resumes(lab: Lab) -> bool:
    try:
        return "pause" not in cluster(lab) or cluster(lab)["pause"] is None
    except (LabError, KeyError):
        return False


def records(lab: Lab) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["record"] for one in lab.objects("memberships")}


def tokens(lab: Lab) -> dict[str, bytes]:
    return {host.name: (host.folder / "etc/outlive/node.token").read_bytes() for host in lab.hosts}


def test_a_lost_server_comes_back_from_its_backup_and_no_guest_notices(lab: Lab) -> None:
    file, before = back_up(lab, "first.tar"), guests(lab)
    keys, known = (lab.state / "store/cluster-key").read_bytes(), tokens(lab)
    former = cluster(lab)["storeIncarnation"]
    lose_the_server(lab)
    restore(lab, file)
    assert cluster(lab)["formerIncarnations"] == [former]
    until(lambda: resumes(lab), "every host has registered again by itself", LIMIT_S, 0.5)
    assert guests(lab) == before, "the same processes"
    assert {record.get("state", "Held") for record in records(lab).values()} == {"Held"}
    assert tokens(lab) == known, "nobody joined again"
    assert {name: story.two_writers(lab.disk(name)) for name in lab.guests} == dict.fromkeys(lab.guests, "")
    path = lab.state / "store/cluster-key"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (keys, 0o600)
    for one in lab.objects("secrets"):
        assert ClusterKey.read(path).unseal(decode_as(Secret, json.dumps(one).encode()))


def test_a_backup_from_before_a_move_moves_nothing_back_and_starts_nothing_twice(lab: Lab) -> None:
    file = back_up(lab, "second.tar")
    vm, (source,) = next(iter(places(lab).items()))
    target = next(host.name for host in lab.hosts if host.name != source)
    lab.outlive("vm", "migrate", vm, "--to", target, "--wait", limit_s=120)
    until(lambda: places(lab)[vm] == [target], f"{vm} runs on {target}", LIMIT_S, 0.5)
    before = guests(lab)
    lose_the_server(lab)
    restore(lab, file)
    until(lambda: resumes(lab), "every host has registered again by itself", LIMIT_S, 0.5)
    until(lambda: assigned(lab, vm) == target, "the store knows where it runs", LIMIT_S, 0.5)
    assert guests(lab) == before, "the same processes"
    assert {name: story.two_writers(lab.disk(name)) for name in lab.guests} == dict.fromkeys(lab.guests, "")


def assigned(lab: Lab, vm: str) -> str:
    found: dict[str, Any] = json.loads(lab.outlive("get", "vms", vm, "-o", "json"))
    return str(found["status"]["assigned"]["hypervisor"])


def test_a_host_that_dies_after_that_is_proven_dead_with_the_secret_that_came_back(lab: Lab) -> None:
    dead = next(host for host in lab.hosts if any(where == [host.name] for where in places(lab).values()))
    dead.power_off()
    until(
        lambda: all(where and where != [dead.name] for where in places(lab).values()),
        "its guests run elsewhere",
        LIMIT_S,
        0.5,
    )
    assert "power" in lab.outlive("why", dead.name)
    assert {name: story.two_writers(lab.disk(name)) for name in lab.guests} == dict.fromkeys(lab.guests, "")
