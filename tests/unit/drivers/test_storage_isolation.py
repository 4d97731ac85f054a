"""Who is isolated by any part of storage, where one note or one part says nothing. A program stands for Ceph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.loops import run_real

from outlive.base import NotFound, SystemClock, Unavailable
from outlive.drivers.storage import CephCommands, Cuts, RbdCut, StorageSettings
from outlive.node.ports import CutPort

pytestmark = pytest.mark.real_loop

PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
print(json.dumps(next(answer for words, answer in answers.items() if words in " ".join(sys.argv))))
"""
BLOCKED = "2099-01-01T00:00:00.000000+0000"


def _ceph(path: Path, notes: Mapping[str, str], *blocked: str) -> RbdCut:
    program, conf = path / "ceph", path / "ceph.conf"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    conf.write_text("")
    table = {"fsid": "f", "epoch": 1, "blocklist": {f"{one}:0/0": BLOCKED for one in blocked}, "osds": []}
    (path / "answers.json").write_text(json.dumps({"config-key dump": notes, "osd dump": table}))
    commands = CephCommands(StorageSettings(ceph_program=str(program), ceph_conf=str(conf)))

    async def addresses(host: str) -> tuple[str, ...]:
        raise NotFound(host)

    return RbdCut(commands, addresses, SystemClock(), host="host-1", own="10.0.1.1", lasts_s=3600.0)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["not ours", '{"epoch": 1, "addresses": ["nowhere"], "images": ["vms/d"]}', "{}"])
async def test_a_note_that_nobody_understands_hides_no_other_host(tmp_path: Path, other: str) -> None:
    note = '{"epoch": 3, "addresses": ["10.0.1.2"], "images": ["vms/d"]}'
    port = _ceph(tmp_path, {"outlive/cut/host-0": other, "outlive/cut/host-2": note}, "10.0.1.2")
    assert dict(await port.list_hosts()) == {"host-2": 3}


class _Silent(RbdCut):
    def __init__(self) -> None:
        """Of a cluster that does not answer."""

    async def list_hosts(self) -> Mapping[str, int]:
        raise Unavailable("no monitor of Ceph answers")


@pytest.mark.slow
async def test_a_part_of_storage_that_does_not_answer_hides_no_host_of_another(tmp_path: Path) -> None:
    note = '{"epoch": 3, "addresses": ["10.0.1.2"], "images": ["vms/d"]}'
    answers: CutPort = _ceph(tmp_path, {"outlive/cut/host-2": note}, "10.0.1.2")
    assert dict(await Cuts({"drbd": _Silent(), "rbd": answers}).list_hosts()) == {"host-2": 3}
    with pytest.raises(Unavailable, match="no monitor"):
        await Cuts({"rbd": _Silent()}).list_hosts()
    with pytest.raises(NotFound):
        await Cuts({}).list_hosts()


class _Orders(RbdCut):
    def __init__(self, *, answers: bool) -> None:
        """Of something that takes orders, or does not answer."""
        self.orders: list[str] = []
        self._answers = answers

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        if not self._answers:
            raise Unavailable("OVN does not answer")
        self.orders.append(host)


def test_a_network_that_does_not_answer_spoils_no_isolation_of_disks() -> None:
    scope = ("disk:rbd:vms/d", "port:p")
    disks, ports = _Orders(answers=True), _Orders(answers=False)

    async def ordered() -> None:
        await Cuts({"rbd": disks, "port": ports}).cut("host-2", 3, scope)
        with pytest.raises(Unavailable, match="OVN"):
            await Cuts({"port": ports}).cut("host-2", 3, scope)

    run_real(ordered())
    assert disks.orders == ["host-2"]
