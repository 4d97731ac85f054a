"""Impossible sizes of VMs are refused by every way of writing them and by the published schema; old ones stay readable.

The numbers stand in ``outlive.resources.amounts``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import GROUP, api, vm
from tests.support.command import outlive
from tests.support.loops import run_real

from outlive.base import SystemClock, SystemIds
from outlive.resources import (
    MOST_DISK_GIB,
    Amounts,
    Flavor,
    Hypervisor,
    ObjectMeta,
    Reservation,
    VirtualMachine,
    VirtualMachineSpec,
    kind_schema,
)
from outlive.store import MemoryStore

VMS = f"{GROUP}/virtualmachines"
GOOD = {"resources": {"cpu": "2", "memory": "4Gi"}, "diskGib": 10}


def size(**amounts: str) -> dict[str, Any]:
    """A spec with these amounts instead of good ones."""
    return {"resources": {"cpu": "2", "memory": "4Gi", **amounts}}


UUID = "3f1c6f2e-5a0b-4c1d-9e57-0a4b6c8d2e10"
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "negative cpu": size(cpu="-8"),
    "no cpu": size(cpu="0"),
    "absurd cpu": size(cpu="8193"),
    "negative memory": size(memory="-64Gi"),
    "no memory": size(memory="0"),
    "memory in another unit": size(memory="16Ki"),
    "absurd memory": size(memory="2Pi"),
    "negative disk": {"diskGib": -1},
    "absurd disk": {"diskGib": MOST_DISK_GIB + 1},
}
"""``no disk`` is a VM that boots from volumes."""


@pytest.mark.parametrize("wrong", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_no_way_of_writing_takes_an_impossible_size(wrong: dict[str, Any], tmp_path: Path) -> None:
    field = "spec.diskGib" if "diskGib" in wrong else "spec.resources."

    async def claim() -> None:
        async with api() as server:
            fresh = {**vm(), "spec": {**GOOD, **wrong}}
            answers = [await server.call("POST", VMS, json=fresh)]
            _, there, _ = await server.call("POST", VMS, json={**vm(), "spec": GOOD})
            put = {**there, "spec": {**there["spec"], **wrong}}
            answers.append(await server.call("PUT", f"{VMS}/vm-1", json=put))
            patch = {"Content-Type": "application/merge-patch+json"}
            answers.append(
                await server.call("PATCH", f"{VMS}/vm-1", headers=patch, data=json.dumps({"spec": wrong}).encode())
            )
            for status, answer, _ in answers:
                assert status == 422, answer
                assert field in json.dumps(answer)
            _, after, _ = await server.call("GET", f"{VMS}/vm-1")
            assert after["spec"] == there["spec"]

    run_real(claim())
    (tmp_path / "vm.json").write_text(json.dumps({**vm(), "spec": {**GOOD, **wrong}}))
    applied = outlive("apply", "-f", tmp_path / "vm.json", "--state-dir", tmp_path / "state")
    assert applied.code == 3, applied
    assert field in applied.line
    assert not (tmp_path / "state" / "store.db").exists()


@pytest.mark.parametrize(
    ("vcpus", "memory_kib"),
    [("-8", "4194304"), ("0", "4194304"), ("8193", "4194304"), ("2", "-1"), ("2", "0"), ("2", f"{2**41}")],
)
def test_a_definition_of_an_impossible_size_is_refused(vcpus: str, memory_kib: str, tmp_path: Path) -> None:
    shape = f"<memory unit='KiB'>{memory_kib}</memory><vcpu>{vcpus}</vcpu>"
    (tmp_path / "vm.xml").write_text(f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid>{shape}</domain>")
    defined = outlive("vm", "define", tmp_path / "vm.xml", "--state-dir", tmp_path / "state")
    assert defined.code == 3, defined


def test_the_schema_of_a_kind_refuses_negative_sizes_and_says_the_range_of_disks() -> None:
    for kind in (VirtualMachine, Flavor, Reservation):
        spec = kind_schema(kind)["properties"]["spec"]["properties"]
        amount = spec["resources"]["additionalProperties"]
        assert amount["minimum"] == 0
        assert not re.match(amount["pattern"], "-64Gi")
        assert re.match(amount["pattern"], "64Gi")
        if kind is not Reservation:
            assert {"minimum": 0, "maximum": MOST_DISK_GIB}.items() <= spec["diskGib"].items()
    observed = kind_schema(Hypervisor)["properties"]["status"]["properties"]["allocation"]
    assert "minimum" not in observed["additionalProperties"]


async def test_an_old_object_of_an_impossible_size_stays_readable_and_its_status_can_be_written() -> None:
    old = VirtualMachine(
        metadata=ObjectMeta(name="old"), spec=VirtualMachineSpec(resources=Amounts(cpu=-8000, memory=-1), disk_gib=-1)
    )
    store = MemoryStore(SystemClock(), SystemIds())
    store.load([old, VirtualMachine(metadata=ObjectMeta(name="good"))])
    async with api(store) as server:
        _, listed, _ = await server.call("GET", VMS)
        assert [one["metadata"]["name"] for one in listed["items"]] == ["good", "old"]
        patch = {"Content-Type": "application/merge-patch+json"}
        status, answer, _ = await server.call(
            "PATCH", f"{VMS}/old/status", headers=patch, data=json.dumps({"status": {"home": "kvm-1"}}).encode()
        )
        assert status == 200, answer
        mend = {"spec": {"resources": {"cpu": "8", "memory": "4Gi"}, "diskGib": 0}}
        status, answer, _ = await server.call("PATCH", f"{VMS}/old", headers=patch, data=json.dumps(mend).encode())
        assert status == 200, answer
