"""Resources over a real HTTP connection: writes, patches, lists, and how each is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.api import GROUP, VMS, api, vm

from outlive.api import Role
from outlive.resources import Assigned, Cluster, Hypervisor, ObjectMeta, VirtualMachine, VirtualMachineStatus

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON = {"Content-Type": "application/json-patch+json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


async def test_an_object_is_created_read_replaced_and_deleted() -> None:
    async with api() as server:
        status, made, _ = await server.call("POST", VMS, json=vm() | {"status": {"phase": "ACTIVE"}})
        assert status == 201
        assert made["status"] == {}
        status, read, _ = await server.call("GET", f"{VMS}/vm-1")
        assert (status, read) == (200, made)
        made["spec"]["project"] = "q"
        status, replaced, _ = await server.call("PUT", f"{VMS}/vm-1", json=made)
        assert (status, replaced["spec"]["project"]) == (200, "q")
        status, answer, _ = await server.call("PUT", f"{VMS}/vm-1", json=made)
        assert (status, answer["reason"], answer["details"]["code"]) == (409, "Conflict", "conflict")
        replaced["status"] = {"phase": "ACTIVE"}
        status, seen, _ = await server.call("PUT", f"{VMS}/vm-1/status", json=replaced)
        assert (status, seen["status"]) == (200, {"phase": "ACTIVE"})
        status, gone, _ = await server.call("DELETE", f"{VMS}/vm-1")
        assert (status, gone["status"], gone["details"]["uid"]) == (200, "Success", made["metadata"]["uid"])
        assert (await server.call("GET", f"{VMS}/vm-1"))[0] == 404


async def test_a_replacement_without_uid_is_bound_to_its_version() -> None:
    async with api() as server:
        _, made, _ = await server.call("POST", VMS, json=vm())
        del made["metadata"]["uid"]
        made["spec"]["project"] = "q"
        assert (await server.call("PUT", f"{VMS}/vm-1", json=made))[0] == 200
        assert (await server.call("PUT", f"{VMS}/vm-1", json=made))[0] == 409
        del made["metadata"]["resourceVersion"]
        assert (await server.call("PUT", f"{VMS}/vm-1", json=made))[0] == 422


async def test_merge_patches_change_only_their_half() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm())
        both = {"spec": {"project": "q"}, "status": {"phase": "ACTIVE"}}
        status, patched, _ = await server.call("PATCH", f"{VMS}/vm-1", json=both, headers=MERGE)
        assert (status, patched["spec"]["project"], patched["status"]) == (200, "q", {})
        both["spec"]["project"] = "r"
        status, patched, _ = await server.call("PATCH", f"{VMS}/vm-1/status", json=both, headers=MERGE)
        assert (patched["spec"]["project"], patched["status"]["phase"]) == ("q", "ACTIVE")


async def test_a_patch_that_names_a_version_or_uid_is_held_to_it() -> None:
    async with api() as server:
        _, made, _ = await server.call("POST", VMS, json=vm())
        stale = {"metadata": {"resourceVersion": "999"}, "spec": {"project": "q"}}
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=stale, headers=MERGE))[0] == 409
        other = {"metadata": {"uid": "another", "labels": {"a": "b"}}}
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=other, headers=MERGE))[0] == 409
        exact = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"project": "q"}}
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=exact, headers=MERGE))[0] == 200
        test = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/spec/zone", "value": "z"},
        ]
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=test, headers=JSON))[0] == 409


async def test_patches_of_labels_are_the_unconditional_write_and_refused_where_that_is() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm(labels={"a": "1", "b": "2"}))
        change = {"metadata": {"labels": {"a": None, "c": "3"}}}
        _, patched, _ = await server.call("PATCH", f"{VMS}/vm-1", json=change, headers=MERGE)
        assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}
        one = [{"op": "remove", "path": "/metadata/labels/b"}]
        _, patched, _ = await server.call("PATCH", f"{VMS}/vm-1", json=one, headers=JSON)
        assert patched["metadata"]["labels"] == {"c": "3"}
        slot = {"apiVersion": "outlive.dev/v1alpha1", "kind": "Reservation", "metadata": {"name": "s"}}
        await server.call("POST", f"{GROUP}/reservations", json=slot | {"spec": {"type": "FailoverReservation"}})
        host = {"metadata": {"labels": {"outlive.dev/host": "h"}}}
        by_json = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
        for path, body, headers in (
            (f"{GROUP}/reservations/s", change, MERGE),
            (f"{GROUP}/reservations/s", by_json, JSON),
            (f"{VMS}/vm-1", host, MERGE),
        ):
            status, answer, _ = await server.call("PATCH", path, json=body, headers=headers)
            assert (status, answer["reason"]) == (403, "Forbidden")


async def test_a_patch_without_a_version_is_applied_again_after_anothers_write() -> None:
    async with api() as server:
        await server.call("POST", VMS, json=vm())
        patches = [
            server.call("PATCH", f"{VMS}/vm-1", json={"spec": {"extraSpecs": {f"k{n}": "v"}}}, headers=MERGE)
            for n in range(4)
        ]
        assert [status for status, _, _ in await asyncio.gather(*patches)] == [200] * 4
        _, read, _ = await server.call("GET", f"{VMS}/vm-1")
        assert len(read["spec"]["extraSpecs"]) == 4


@pytest.mark.parametrize(
    ("patch", "headers", "expected"),
    [
        ({"metadata": {"name": "other"}}, MERGE, 422),
        ({"spec": {"nonsense": 1}}, MERGE, 422),
        ({"spec": None, "metadata": None}, MERGE, 422),
        ([{"op": "add", "path": "/spec/x", "value": 1}], JSON, 422),
        ([{"op": "test", "path": "/spec/project", "value": "no"}], JSON, 409),
        ({"op": "add"}, JSON, 400),
        ({}, {"Content-Type": "application/apply-patch+yaml"}, 400),
        ({}, {"Content-Type": "application/cbor"}, 415),
        ({}, {"Content-Type": "application/json"}, 400),
    ],
)
async def test_a_patch_that_makes_no_sense_changes_nothing(patch: Any, headers: dict[str, str], expected: int) -> None:
    async with api() as server:
        _, made, _ = await server.call("POST", VMS, json=vm())
        status, answer, _ = await server.call("PATCH", f"{VMS}/vm-1", json=patch, headers=headers)
        assert (status, answer["kind"]) == (expected, "Status")
        assert (await server.call("GET", f"{VMS}/vm-1"))[1] == made


async def test_deletion_honours_preconditions_and_finalizers() -> None:
    async with api() as server:
        _, made, _ = await server.call("POST", VMS, json=vm(finalizers=["outlive.dev/hold"]))
        for wrong in ({"uid": "other"}, {"resourceVersion": "999"}):
            status, _, _ = await server.call("DELETE", f"{VMS}/vm-1", json={"preconditions": wrong})
            assert status == 409
        right = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
        status, marked, _ = await server.call("DELETE", f"{VMS}/vm-1", json={"preconditions": right})
        assert (status, marked["kind"]) == (200, "VirtualMachine")
        assert marked["metadata"]["deletionTimestamp"]
        none = {"metadata": {"finalizers": None}}
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=none, headers=MERGE))[0] == 200
        assert (await server.call("GET", f"{VMS}/vm-1"))[0] == 404


async def test_lists_are_paged_selected_and_printed() -> None:
    async with api() as server:
        for number in range(7):
            await server.call("POST", VMS, json=vm(f"vm-{number}", labels={"odd": str(number % 2)}))
        _, page, _ = await server.call("GET", f"{VMS}?limit=3")
        names = [item["metadata"]["name"] for item in page["items"]]
        while page["metadata"].get("continue"):
            token = page["metadata"]["continue"]
            _, page, _ = await server.call("GET", f"{VMS}?limit=3", params={"continue": token})
            names += [item["metadata"]["name"] for item in page["items"]]
        assert names == [f"vm-{number}" for number in range(7)]
        _, whole, _ = await server.call("GET", VMS)
        assert (whole["kind"], len(whole["items"])) == ("VirtualMachineList", 7)
        _, odd, _ = await server.call("GET", f"{VMS}?labelSelector=odd%3D1")
        assert [item["metadata"]["name"] for item in odd["items"]] == ["vm-1", "vm-3", "vm-5"]
        _, one, _ = await server.call("GET", f"{VMS}?fieldSelector=metadata.name%3Dvm-4")
        assert [item["metadata"]["name"] for item in one["items"]] == ["vm-4"]
        _, table, _ = await server.call("GET", f"{VMS}?limit=2", headers=TABLE)
        assert [len(row["cells"]) for row in table["rows"]] == [len(table["columnDefinitions"])] * 2


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("labelSelector=%3D%3D", 400),
        ("fieldSelector=spec.zone%3Dz", 400),
        ("limit=-1", 400),
        ("limit=many", 400),
        ("watch=perhaps", 400),
        ("continue=rubbish", 410),
        ("includeObject=Half", 200),
    ],
)
async def test_a_query_that_is_not_understood_is_refused(query: str, expected: int) -> None:
    async with api() as server:
        status, answer, _ = await server.call("GET", f"{VMS}?{query}")
        assert status == expected
        assert answer["kind"] == ("Status" if expected != 200 else "VirtualMachineList")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", f"{GROUP}/nothings", 404),
        ("GET", f"{VMS}/a/b/c", 404),
        ("GET", f"{VMS}/a/spec", 404),
        ("GET", f"{GROUP}x/virtualmachines", 404),
        ("PUT", f"{GROUP}/elections/e/status", 404),
        ("DELETE", VMS, 405),
        ("POST", f"{VMS}/a", 405),
        ("DELETE", f"{VMS}/a/status", 405),
        ("GET", "/apis/other.dev", 404),
        ("GET", f"{VMS}/..%2f..%2fsecret", 404),
    ],
)
async def test_what_is_not_served_is_a_status_with_a_code(method: str, path: str, expected: int) -> None:
    async with api() as server:
        status, answer, headers = await server.call(method, path)
        assert (status, answer["kind"], answer["code"]) == (expected, "Status", expected)
        assert answer["details"]["code"]
        assert status != 405 or headers["Allow"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"kind":"Flavor"}',
        b'{"spec":{"x":1}}',
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"metadata":{"name":"UP"}}',
    ],
)
async def test_a_bad_body_gets_one_clear_line(body: bytes) -> None:
    async with api() as server:
        headers = {"Content-Type": "application/json"}
        status, answer, _ = await server.call("POST", VMS, data=body, headers=headers)
        assert status in (400, 422)
        assert answer["message"]
        assert "\n" not in answer["message"]
        assert "Traceback" not in answer["message"]


async def test_a_dry_run_is_judged_and_answered_and_changes_nothing() -> None:
    async with api() as server:
        status, made, _ = await server.call("POST", f"{VMS}?dryRun=All", json=vm())
        assert (status, bool(made["metadata"]["uid"])) == (201, True)
        assert (await server.call("GET", f"{VMS}/vm-1"))[0] == 404
        assert (await server.call("POST", VMS, json=vm()))[0] == 201
        assert (await server.call("POST", f"{VMS}?dryRun=All", json=vm()))[0] == 409
        change = {"spec": {"project": "other"}}
        _, changed, _ = await server.call("PATCH", f"{VMS}/vm-1?dryRun=All", json=change, headers=MERGE)
        assert changed["spec"]["project"] == "other"
        wrong = {"spec": {"nonsense": 1}}
        assert (await server.call("PATCH", f"{VMS}/vm-1?dryRun=All", json=wrong, headers=MERGE))[0] == 422
        assert (await server.call("DELETE", f"{VMS}/vm-1?dryRun=All"))[0] == 200
        assert (await server.call("DELETE", f"{VMS}/vm-1", json={"dryRun": ["All"]}))[0] == 200
        _, read, _ = await server.call("GET", f"{VMS}/vm-1")
        assert read["spec"].get("project") != "other"
        assert (await server.call("POST", f"{VMS}?dryRun=Some", json=vm()))[0] == 400


APPLY = {"Content-Type": "application/apply-patch+yaml"}


async def test_a_server_side_apply_creates_changes_and_removes_what_its_manager_applied() -> None:
    async with api() as server:
        path = f"{VMS}/vm-1?fieldManager=me"
        wanted = vm()
        wanted["spec"]["extraSpecs"] = {"a": "1", "b": "2"}
        assert (await server.call("PATCH", path, json=wanted, headers=APPLY))[0] == 201
        other = {"spec": {"extraSpecs": {"c": "3"}}}
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=other, headers=MERGE))[0] == 200
        del wanted["spec"]["extraSpecs"]["b"]
        status, changed, _ = await server.call("PATCH", path, json=wanted, headers=APPLY)
        assert (status, changed["spec"]["extraSpecs"]) == (200, {"a": "1", "c": "3"})
        again = await server.call("PATCH", path, json=wanted, headers=APPLY)
        assert again[1]["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_two_managers_conflict_over_a_field_unless_one_forces_it() -> None:
    async with api() as server:
        one, two = vm(), vm()
        one["spec"]["project"], two["spec"]["project"] = "one", "two"
        await server.call("PATCH", f"{VMS}/vm-1?fieldManager=a", json=one, headers=APPLY)
        status, refused, _ = await server.call("PATCH", f"{VMS}/vm-1?fieldManager=b", json=two, headers=APPLY)
        assert (status, "spec.project" in refused["message"]) == (409, True)
        status, taken, _ = await server.call("PATCH", f"{VMS}/vm-1?fieldManager=b&force=true", json=two, headers=APPLY)
        assert (status, taken["spec"]["project"]) == (200, "two")
        assert (await server.call("PATCH", f"{VMS}/vm-1", json=one, headers=APPLY))[0] == 400


async def test_a_host_that_has_vms_is_deleted_only_by_force() -> None:
    async with api() as server:
        hosts = f"{GROUP}/hypervisors"
        for name in ("h1", "h2"):
            await server.store.create(Hypervisor(metadata=ObjectMeta(name=name)))
        made = await server.store.create(VirtualMachine(metadata=ObjectMeta(name="a")))
        there = VirtualMachineStatus(assigned=Assigned(hypervisor="h1"))
        await server.store.replace_status(msgspec.structs.replace(made, status=there))
        status, refused, _ = await server.call("DELETE", f"{hosts}/h1")
        assert (status, refused["details"]["code"]) == (409, "refused")
        assert "1 VM: a" in refused["message"]
        assert "--force" in refused["details"]["remedy"]
        assert (await server.call("DELETE", f"{hosts}/h2"))[0] == 200
        assert (await server.call("DELETE", f"{hosts}/h1?propagationPolicy=Orphan"))[0] == 200


async def test_the_cluster_is_not_deleted_not_even_by_force() -> None:
    async with api() as server:
        cluster = f"{GROUP}/clusters/default"
        await server.store.create(Cluster(metadata=ObjectMeta(name="default")))
        for how in ("", "?propagationPolicy=Orphan"):
            status, refused, _ = await server.call("DELETE", cluster + how)
            assert (status, refused["details"]["code"]) == (409, "refused")
        assert (await server.call("GET", cluster))[0] == 200


@pytest.mark.parametrize(
    ("role", "verb", "resource", "subresource", "allowed"),
    [
        (Role.ADMIN, "delete", "hypervisors", "", True),
        (Role.OPERATOR, "patch", "hypervisors", "", True),
        (Role.OPERATOR, "update", "virtualmachines", "status", True),
        (Role.OPERATOR, "create", "reservations", "", False),
        (Role.VIEWER, "list", "hypervisors", "", True),
        (Role.VIEWER, "delete", "hypervisors", "", False),
        (Role.SCHEDULER, "get", "hypervisors", "", False),
        (Role.ADMIN, "create", "nonsense", "", False),
    ],
)
async def test_a_review_says_what_a_request_would_be_answered(
    role: Role, verb: str, resource: str, subresource: str, allowed: bool
) -> None:
    async with api() as server:
        about = {"verb": verb, "group": "outlive.dev", "resource": resource, "subresource": subresource}
        body = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": about}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        status, answer, _ = await server.call("POST", path, json=body, role=role)
        assert (status, answer["status"]["allowed"]) == (201, allowed)


# Watches


async def test_roles_hold_on_resources() -> None:
    async with api() as server:
        slot = {"kind": "Reservation", "metadata": {"name": "s"}, "spec": {"type": "FailoverReservation"}}
        for role, method, path, body, expected in (
            (Role.VIEWER, "GET", VMS, None, 200),
            (Role.VIEWER, "POST", VMS, vm(), 403),
            (Role.OPERATOR, "POST", VMS, vm(), 201),
            (Role.VIEWER, "DELETE", f"{VMS}/vm-1", None, 403),
            (Role.SCHEDULER, "GET", VMS, None, 403),
            (Role.OPERATOR, "POST", f"{GROUP}/reservations", slot, 403),
            (Role.ADMIN, "POST", f"{GROUP}/reservations", slot, 201),
            (None, "GET", VMS, None, 401),
        ):
            status, answer, _ = await server.call(method, path, json=body, role=role)
            assert status == expected, (role, method, path, answer)


async def test_the_list_of_a_large_store_comes_in_pieces() -> None:
    async with api() as server:
        for number in range(1203):
            await server.store.create(VirtualMachine(metadata=ObjectMeta(name=f"vm-{number:04}")))
        _, whole, headers = await server.call("GET", VMS)
        assert len({item["metadata"]["name"] for item in whole["items"]}) == 1203
        assert headers["Transfer-Encoding"] == "chunked"


def pipeline(*filters: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "mine"},
        "spec": {"filters": list(filters)},
    }


async def test_a_pipeline_that_cannot_be_built_is_refused_and_an_unknown_step_is_a_warning() -> None:
    async with api() as server:
        bad = {"name": "filter_external_customer", "params": [{"key": "nonsense", "intValue": 1}]}
        path = f"{GROUP}/pipelines"
        status, answer, _ = await server.call("POST", path, json=pipeline(bad))
        assert (status, answer["details"]["code"]) == (422, "invalid")
        assert "nonsense" in answer["message"]
        later = {"name": "filter_of_next_year"}
        status, made, headers = await server.call("POST", path, json=pipeline(later))
        assert status == 201
        assert "filter_of_next_year" in headers["Warning"]
        made["spec"]["filters"] = [bad]
        status, answer, _ = await server.call("PUT", f"{path}/mine", json=made)
        assert (status, answer["details"]["code"]) == (422, "invalid")


async def test_rules_that_cannot_be_met_are_refused_with_both_rules_and_a_remedy() -> None:
    async with api() as server:

        async def created(name: str, **spec: object) -> tuple[int, Any]:
            status, answer, _ = await server.call("POST", VMS, json={**vm(name), "spec": spec})
            return status, answer

        web, db = {"group": "web", "policy": "affinity"}, {"group": "db", "policy": "anti-affinity"}
        assert (await created("a", affinity=[web, db]))[0] == 201
        status, answer = await created("b", affinity=[web, db])
        assert (status, answer["details"]["code"]) == (422, "invalid")
        assert "a and b are together in affinity group web and apart in anti-affinity group db" in answer["message"]
        assert "take one of them out" in answer["message"]
        assert (await created("b", affinity=[db]))[0] == 201
        patch = {"spec": {"affinity": [web, db]}}
        status, answer, _ = await server.call("PATCH", f"{VMS}/b", json=patch, headers=MERGE)
        assert status == 422
        mended = {"spec": {"affinity": [web, {"group": "db", "policy": "soft-anti-affinity"}]}}
        status, answer, _ = await server.call("PATCH", f"{VMS}/b", json=mended, headers=MERGE)
        assert status == 200, answer
        strict = {"weights": {"h1": 1}, "strict": True}
        status, answer = await created("c", hostLimit=["h2"], preferredHosts=strict)
        assert status == 422
        assert "no host is at once in hostLimit and in the strict preferred hosts of c" in answer["message"]
        assert (await created("d", preferredHosts={"weights": {"h1": 0}}))[0] == 422


async def test_vms_that_could_never_start_are_refused_and_other_changes_to_them_are_not() -> None:
    async with api() as server:

        async def created(name: str, *after: str) -> tuple[int, Any]:
            status, answer, _ = await server.call("POST", VMS, json={**vm(name), "spec": {"startAfter": [*after]}})
            return status, answer

        cached = {**vm("cached"), "spec": {"diskCache": "writeback"}}
        status, answer, _ = await server.call("POST", VMS, json=cached)
        assert (status, "leaves writes to its host" in answer["message"]) == (422, True)
        malformed = {**vm("malformed"), "spec": {"definition": "<domain type='qemu'><name>a</name>"}}
        status, answer, _ = await server.call("POST", VMS, json=malformed)
        assert (status, "VM malformed: the definition is no XML" in answer["message"]) == (422, True)
        assert (await created("itself", "itself"))[1]["details"]["code"] == "invalid"
        assert (await created("twice", "a", "a"))[0] == 422
        assert (await created("many", *(f"vm-{number}" for number in range(33))))[0] == 422
        assert (await created("page", "service"))[0] == 201
        assert (await created("service", "database"))[0] == 201
        status, answer = await created("database", "page")
        assert (status, answer["details"]["code"]) == (422, "invalid")
        assert "start after each other: database, page and service" in answer["message"]
        assert (await created("database"))[0] == 201
        closing = {"spec": {"startAfter": ["page"]}}
        status, answer, _ = await server.call("PATCH", f"{VMS}/database", json=closing, headers=MERGE)
        assert status == 422
        database = await server.store.get(VirtualMachine, "database")
        around = msgspec.structs.replace(database.spec, start_after=("page",))
        await server.store.replace(msgspec.structs.replace(database, spec=around))
        other = {"spec": {"startAfter": ["page"], "restartPriority": 7}}
        status, answer, _ = await server.call("PATCH", f"{VMS}/database", json=other, headers=MERGE)
        assert status == 200, answer
