"""Every kind × field × role × verb: what the table in the manual says is what the server allows, and nothing else.

The table in the manual is the one that ``KindInfo.writers`` declares. Here it is read from the page, and each write is
judged by the function that all routes ask; a sample goes over the routes themselves.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from tests.support.api import GROUP, HOST
from tests.support.asgi import application, ask
from tests.support.matrix import METADATA, NAME, TERM, fields_of, fitting, made, with_changed
from tests.support.writers_page import ALONE, BEGIN, END, PAGE, cell, render

from outlive.api import (
    APPLY_PATCH,
    CHECKED,
    HOSTS,
    JSON_PATCH,
    MERGE_PATCH,
    Identity,
    Role,
    check_write,
    may_write,
    merge_half,
)
from outlive.base import Forbidden, SystemClock, SystemIds
from outlive.node import NAMED_AFTER_HOSTS, RULES_OF_HOSTS, RULES_OF_OTHERS, Facts
from outlive.node.membership import MemberView
from outlive.resources import (
    KINDS,
    Assigned,
    Cluster,
    Fault,
    Hypervisor,
    HypervisorSpec,
    MemberRecord,
    Membership,
    ObjectMeta,
    Resource,
    VirtualMachine,
    VirtualMachineStatus,
    owners_of,
    to_builtins,
)
from outlive.store import MemoryStore, Store

pytestmark = pytest.mark.slow

VERBS = ("create", "delete")
AT_CREATION = " (at creation)"
WRITERS = tuple(sorted(CHECKED))
SILENT = tuple(role for role in Role if role not in CHECKED and role is not Role.ADMIN)
_replace = msgspec.structs.replace


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], dict[str, str]]:
    """Kind and part → role → cell, as the names on the page give it; the part ``""`` is all."""
    lines = PAGE.read_text().partition(BEGIN)[2].partition("### ")[0].splitlines()
    found = {}
    for line in lines:
        if not line.startswith("* **"):
            continue
        kinds, _, text = line.removeprefix("* **").removesuffix(".").partition("**: ")
        for group in text.split("; "):
            parts, _, names = group.rpartition(" by ")
            owners = () if names == ALONE else tuple(names.split(", "))
            for name in kinds.split(", "):
                cells = {role.value: cell(KINDS[name], role.value, owners) for role in WRITERS}
                found.update(
                    {(name, "" if part == "all" else part.replace("`", "")): cells for part in parts.split(", ")}
                )
    return found


def says(kind: type[Resource], part: str, role: Role) -> str:
    """The cell of the longest row that the field lies under; metadata without a row is the spec's, or the creators'."""
    rows = [
        row for name, row in table() if name == kind.__name__ and row not in VERBS and not row.endswith(AT_CREATION)
    ]
    found = [row for row in rows if row == "" or part == row or part.startswith(f"{row}.")]
    row = max(found, key=len, default=None)
    if part.startswith("metadata.") and not row:
        row = "spec" if "spec" in kind.__struct_fields__ else "create"
    return table()[kind.__name__, row][role] if row is not None and (kind.__name__, row) in table() else ""


def given(kind: type[Resource], part: str, role: Role) -> str:
    """The cell of what may be given at a creation alone."""
    rows = [row for name, row in table() if name == kind.__name__ and row.endswith(AT_CREATION)]
    fields = [(row, row.removesuffix(AT_CREATION)) for row in rows]
    found = [row for row, field in fields if part == field or part.startswith(f"{field}.")]
    return table()[kind.__name__, found[0]][role] if found else ""


def identity(role: Role) -> Identity:
    return Identity("t", role, HOST if role in HOSTS else "")


FACTS = Facts(
    members=(MemberView(host=HOST, uid="u", record=MemberRecord(machine_id="m", boot_id="b")),),
    vm=VirtualMachine(status=VirtualMachineStatus(assigned=Assigned(hypervisor=HOST))),
    cluster=Cluster(metadata=ObjectMeta(name="default")),
    hosts=(HOST,),
)


def refusal(role: Role, before: Resource | None, after: Resource | None) -> str:
    try:
        check_write(identity(role), before, after, FACTS, term=TERM if role is Role.COORDINATOR else 0)
    except Forbidden as error:
        return str(error)
    return ""


def by_table(why: str) -> bool:
    """Whether it is the table that refuses, and no rule."""
    return "that belongs to" in why or "another host's" in why


def agree(cell: str, why: str, kind: type[Resource], role: Role) -> bool:
    """Whether what was answered is what the table says; rules may refuse more, where the table says ``by rule``."""
    if cell == "":
        return why != ""
    ruled = kind in (RULES_OF_HOSTS if role in HOSTS else RULES_OF_OTHERS)
    return why == "" or (ruled and not by_table(why))


CASES = [(kind, role) for kind in KINDS.values() for role in WRITERS]


def test_the_table_in_the_manual_is_the_one_that_is_enforced() -> None:
    """Written anew by: .venv/bin/python -m tests.support.writers_page"""
    assert f"{BEGIN}\n\n{render()}\n{END}" in PAGE.read_text()


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_field_has_an_owner_and_every_line_a_field(kind: type[Resource]) -> None:
    fields = fields_of(kind)
    for path in fields:
        if not path.startswith("metadata."):
            assert owners_of(kind, path), f"{kind.__name__}.{path} has no writer: declare one, or admin"
    for path in (*kind.info.writers.fields, *kind.info.writers.given):
        assert path == "" or any(one == path or one.startswith(f"{path}.") for one in (*fields, "metadata.labels.x"))
    assert kind.info.writers.creates, f"nobody creates {kind.__name__}: declare who does, or admin"


@pytest.mark.parametrize(("kind", "role"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_changes_are_as_the_table_says(kind: type[Resource], role: Role) -> None:
    before = fitting(kind, role)
    for path in fields_of(kind):
        after = with_changed(before, path)
        halves = (False, True) if kind.has_status() else (False,)
        for status in halves:
            wanted = merge_half(before, after, status=status)
            cell = says(kind, path, role) if wanted != before else "untouched"
            assert agree(cell, refusal(role, before, wanted), kind, role), (path, status, cell)
    if role in HOSTS and kind in NAMED_AFTER_HOSTS:
        foreign = _replace(before, metadata=ObjectMeta(name="kvm-2"))
        for path in fields_of(kind):
            cell = says(kind, path, role).replace("own", "")
            assert agree(cell, refusal(role, foreign, with_changed(foreign, path)), kind, role), path


@pytest.mark.parametrize(("kind", "role"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_creations_and_deletions_are_as_the_table_says(kind: type[Resource], role: Role) -> None:
    creates, deletes = table()[kind.__name__, "create"][role], table()[kind.__name__, "delete"][role]
    obj = fitting(kind, role)
    assert agree(deletes, refusal(role, obj, None), kind, role)
    for path in fields_of(kind):
        wanted = with_changed(obj, path)
        if kind.has_status() and path.startswith("status"):
            continue  # the store drops it
        cell = creates and (says(kind, path, role) or given(kind, path, role))
        assert agree(cell, refusal(role, None, wanted), kind, role), path


@pytest.mark.parametrize("role", SILENT)
def test_other_roles_write_nothing(role: Role) -> None:
    for kind in KINDS.values():
        for verb in ("create", "update", "delete"):
            for status in (False, True):
                with pytest.raises(Forbidden):
                    may_write(identity(role), kind, status=status, verb=verb)


def test_what_safety_rests_on_belongs_to_no_operator() -> None:
    for kind, path in (
        (Membership, "record.state"),
        (Membership, "record.deadThrough"),
        (Membership, "record.proof"),
        (Membership, "record.cut.scope"),
        (Membership, "record.fence.phase"),
        (Membership, "record.machineId"),
        (Membership, "record.epoch"),
        (Hypervisor, "status.lost"),
        (Hypervisor, "status.rehearsed"),
        (Hypervisor, "status.addresses"),
        (Hypervisor, "spec.fencing.address"),
        (VirtualMachine, "status.holders"),
        (VirtualMachine, "status.recovery"),
        (Fault, "ended"),
        (Cluster, "status.sealingKey"),
        (Cluster, "status.pause"),
    ):
        assert says(kind, path, Role.OPERATOR) == "", path
    for kind in (Hypervisor, VirtualMachine, Membership):
        assert table()[kind.__name__, "delete"][Role.CONTROLLER] == ""
    assert says(Cluster, "status.sealingKey", Role.CONTROLLER) == ""


# The routes ask the same function

SAMPLE = (
    (Hypervisor, "spec.groups"),
    (Hypervisor, "spec.drain"),
    (Hypervisor, "spec.fencing.address"),
    (Hypervisor, "status.lost"),
    (Hypervisor, "status.conditions"),
    (Hypervisor, "metadata.labels.a"),
    (VirtualMachine, "spec.project"),
    (VirtualMachine, "status.home"),
    (VirtualMachine, "status.phase"),
    (VirtualMachine, "metadata.annotations.a"),
    (Cluster, "spec.description"),
    (Cluster, "status.sealingKey"),
    (Membership, "record.seq"),
    (Membership, "record.former"),
)


async def furnished(kind: type[Resource]) -> tuple[Store, Any]:
    """A store with the object, and what rules look at."""
    store: Store = MemoryStore(SystemClock(), SystemIds())
    obj = fitting(kind, Role.HOST)
    if kind is Cluster:
        obj = made(Cluster, "default")
    for one in (Hypervisor(metadata=ObjectMeta(name=NAME)), obj):
        if not isinstance(one, kind) and kind is Hypervisor:
            continue
        if one is not obj and isinstance(obj, Hypervisor):
            continue
        await store.create(one)
    now: Any = await store.get(kind, obj.name)
    coordinator: Any = await store.get(Hypervisor, NAME)
    now_or_it = _replace(coordinator, spec=HypervisorSpec(management="node", mode="coordinator"))
    coordinator = await store.replace(now_or_it)
    if kind is Hypervisor:
        return store, coordinator
    if kind.has_status():
        now = await store.replace_status(_replace(now, status=obj.status))  # type: ignore[attr-defined]
    return store, now


@pytest.mark.parametrize(("kind", "path"), SAMPLE, ids=lambda one: getattr(one, "__name__", str(one)))
def test_routes_answer_as_the_table_says(kind: type[Resource], path: str) -> None:
    async def tries(role: Role) -> None:
        store, now = await furnished(kind)
        app, cell = application(store), says(kind, path, role)
        status = path.startswith("status") and kind.has_status()
        document: Any = to_builtins(with_changed(now, path))
        part: Any = {path.split(".")[0]: document.get(path.split(".")[0])}
        if path in METADATA:
            part = {"metadata": to_builtins(with_changed(made(kind), path))["metadata"]}
        versioned = {"op": "test", "path": "/metadata/name", "value": now.name}
        half = next(iter(part))
        operation = [versioned, {"op": "add", "path": f"/{half}", "value": document[half]}]
        head = {"apiVersion": document["apiVersion"], "kind": document["kind"]}
        target = f"{GROUP}/{kind.info.plural}/{now.name}{'/status' if status else ''}"
        for method, body, media, query in (
            ("PUT", document, "application/json", "?dryRun=All"),
            ("PATCH", part, MERGE_PATCH, "?dryRun=All"),
            ("PATCH", operation, JSON_PATCH, "?dryRun=All"),
            ("PATCH", head | part, APPLY_PATCH, "?dryRun=All&fieldManager=m&force=true"),
        ):
            code, answer = await ask(app, role, method, target + query, body, media)
            applies = media == APPLY_PATCH and says(kind, "metadata.annotations.x", role) == "" and not status
            if role is Role.ADMIN or (cell and not applies):
                assert code in (200, 422) or (code == 403 and not by_table(answer["message"])), (method, media, answer)
            else:
                assert code == 403, (role, method, media, answer)

    async def all_roles() -> None:
        for role in (*WRITERS, Role.VIEWER, Role.JOIN):
            if role in WRITERS:
                await tries(role)
            else:
                store, now = await furnished(kind)
                target = f"{GROUP}/{kind.info.plural}/{now.name}"
                assert (await ask(application(store), role, "PUT", target, {}))[0] == 403

    asyncio.run(all_roles())
