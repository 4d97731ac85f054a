"""Deleting VMs over HTTP: what a host may run is marked, changes no more, and keeps its name until it has gone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.api import GROUP, HOST, VMS, Api, api, vm

from outlive.api import Role
from outlive.base import AlreadyExists, Conflict
from outlive.cli import write_resource
from outlive.resources import (
    RUN_FINALIZER,
    Assigned,
    Holder,
    MemberRecord,
    Membership,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineStatus,
)

MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
WAITS = "VM vm-1 is being deleted: kvm-1 may still run it; it goes, and its name is free, once"
_replace = msgspec.structs.replace


async def running(server: Api) -> dict[str, Any]:
    """``vm-1`` as it runs on ``kvm-1``, and the Membership of that, which nothing proves dead."""
    member = await server.store.create(
        Membership(metadata=ObjectMeta(name=HOST), record=MemberRecord(machine_id="m", boot_id="b", epoch=1, nonce="n"))
    )
    _, made, _ = await server.call("POST", VMS, json=vm())
    assert "finalizers" not in made["metadata"]
    stored = await server.store.get(VirtualMachine, "vm-1")
    guarded = _replace(stored.metadata, finalizers=(RUN_FINALIZER,))
    stored = await server.store.replace(_replace(stored, metadata=guarded))
    holder = Holder(hypervisor=HOST, member_uid=member.metadata.uid, epoch=1, run_id="r1")
    status = VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor=HOST), holders=(holder,))
    await server.store.replace_status(_replace(stored, status=status))
    return (await server.call("GET", f"{VMS}/vm-1"))[1]


async def released(server: Api) -> None:
    """Its host has stopped it."""
    stored = await server.store.get(VirtualMachine, "vm-1")
    await server.store.replace_status(_replace(stored, status=_replace(stored.status, holders=())))


async def test_a_vm_that_may_run_is_marked_and_its_name_is_taken_until_it_has_gone() -> None:
    async with api() as server:
        made = await running(server)
        status, marked, _ = await server.call("DELETE", f"{VMS}/vm-1?propagationPolicy=Orphan")
        assert (status, marked["kind"]) == (200, "VirtualMachine")
        assert marked["metadata"]["deletionTimestamp"]
        status, answer, _ = await server.call("POST", VMS, json=vm())
        assert (status, answer["reason"]) == (409, "AlreadyExists")
        assert answer["message"].startswith(WAITS)
        assert "outlive fence kvm-1" in answer["message"]
        body = vm() | {"spec": {"project": "other"}}
        status, answer, _ = await server.call(
            "PATCH", f"{VMS}/vm-1?fieldManager=x&force=true", json=body, headers=APPLY
        )
        assert (status, answer["message"][: len(WAITS)]) == (409, WAITS)
        client = server.client()
        with pytest.raises(AlreadyExists, match="may still run it"):
            await write_resource(client, VirtualMachine(metadata=ObjectMeta(name="vm-1")))
        await client.close()
        await released(server)
        now = (await server.call("GET", f"{VMS}/vm-1"))[1]
        now["metadata"]["finalizers"] = []
        assert (await server.call("PUT", f"{VMS}/vm-1", json=now))[0] == 200
        status, again, _ = await server.call("POST", VMS, json=vm())
        assert status == 201
        assert again["metadata"]["uid"] != made["metadata"]["uid"]


@pytest.mark.parametrize("role", [Role.ADMIN, Role.OPERATOR])
async def test_nobody_takes_the_finalizer_from_what_a_host_may_run(role: Role) -> None:
    async with api() as server:
        await running(server)
        for _ in range(2):  # before it is marked, and after
            none = {"metadata": {"finalizers": None}}
            status, _, _ = await server.call("PATCH", f"{VMS}/vm-1", json=none, headers=MERGE, role=role)
            assert status in (403, 409), role
            now = (await server.call("GET", f"{VMS}/vm-1"))[1]
            now["metadata"]["finalizers"] = ["a.example/b"]
            assert (await server.call("PUT", f"{VMS}/vm-1", json=now, role=role))[0] in (403, 409)
            assert RUN_FINALIZER in (await server.store.get(VirtualMachine, "vm-1")).metadata.finalizers
            await server.call("DELETE", f"{VMS}/vm-1")


async def test_the_finalizer_is_never_taken_by_a_guess_of_the_next_version() -> None:
    async with api() as server:
        made = await running(server)
        version = int(made["metadata"]["resourceVersion"])
        for guess in range(version - 3, version + 4):
            made["metadata"] |= {"resourceVersion": str(guess), "finalizers": ["a.example/b"]}
            assert (await server.call("PUT", f"{VMS}/vm-1", json=made))[0] == 409
        assert (await server.store.get(VirtualMachine, "vm-1")).guarded


async def test_a_manifest_without_finalizers_replaces_a_vm_that_runs_and_keeps_ours() -> None:
    async with api() as server:
        made = await running(server)
        del made["metadata"]["finalizers"]
        made["spec"]["project"] = "q"
        for role in (Role.OPERATOR, Role.ADMIN):
            status, now, _ = await server.call("PUT", f"{VMS}/vm-1", json=made, role=role)
            assert (status, now["metadata"]["finalizers"]) == (200, [RUN_FINALIZER])
            made["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
            made["spec"]["project"] = "r"


async def test_a_manifest_of_a_vm_that_ran_elsewhere_makes_one_that_nobody_holds() -> None:
    async with api() as server:
        body = vm(finalizers=[RUN_FINALIZER])
        status, made, _ = await server.call("POST", VMS, json=body, role=Role.OPERATOR)
        assert (status, made["metadata"].get("finalizers", [])) == (201, [])
        assert (await server.call("DELETE", f"{VMS}/vm-1"))[1]["status"] == "Success"


async def test_a_membership_under_which_vms_are_held_is_deleted_only_by_force() -> None:
    async with api() as server:
        await running(server)
        path = f"{GROUP}/memberships/{HOST}"
        status, answer, _ = await server.call("DELETE", path)
        assert status >= 400
        assert "host kvm-1 may run 1 VM under this Membership: vm-1" in answer["message"]
        assert "outlive fence kvm-1 --reason ... first" in answer["message"]
        assert (await server.call("DELETE", f"{path}?propagationPolicy=Orphan"))[0] == 200
        await server.store.create(
            Membership(metadata=ObjectMeta(name=HOST), record=MemberRecord(machine_id="m", boot_id="b"))
        )
        assert (await server.call("DELETE", path))[0] == 200  # another one, under which nothing is held


async def test_a_vm_is_marked_by_every_client_that_deletes_it() -> None:
    async with api() as server:
        await running(server)
        client = server.client()
        found = await client.get(VirtualMachine, "vm-1")
        await client.delete(found.ref, uid=found.metadata.uid, version=found.metadata.resource_version)
        left = await client.get(VirtualMachine, "vm-1")
        assert left.deleting
        with pytest.raises((AlreadyExists, Conflict)):
            await client.replace(_replace(left, spec=_replace(left.spec, project="q")))
        await client.close()


async def test_the_host_of_a_vm_sets_the_finalizer_and_does_not_take_it_back() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm())
        stored = await server.store.get(VirtualMachine, "vm-1")
        assigned = VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor=HOST))
        await server.store.replace_status(_replace(stored, status=assigned))
        made = (await server.call("GET", f"{VMS}/vm-1"))[1]
        made["metadata"]["finalizers"] = [RUN_FINALIZER]
        status, now, _ = await server.call("PUT", f"{VMS}/vm-1", json=made, role=Role.HOST)
        assert (status, now["metadata"]["finalizers"]) == (200, [RUN_FINALIZER])
        now["metadata"]["finalizers"] = ["a.example/b"]
        status, answer, _ = await server.call("PUT", f"{VMS}/vm-1", json=now, role=Role.HOST)
        assert (status, "a host adds" in answer["message"]) == (403, True)
