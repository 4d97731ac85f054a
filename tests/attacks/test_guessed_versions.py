"""Writes that name a version which is not there yet: what is judged is what the write then replaces."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.api import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, ApiSettings, Role
from outlive.base import SystemClock, SystemIds
from outlive.resources import (
    Cluster,
    Hypervisor,
    MemberRecord,
    Membership,
    ObjectMeta,
    Resource,
    VirtualMachine,
    to_builtins,
)
from outlive.store import Store
from outlive.store.sqlite import SqliteStore
from tests.support.api import GROUP, HOST, api
from tests.support.asgi import application, ask
from tests.support.loops import run_real

GUESSES = 8
TRIES = 10_000
TLS_ROUNDS = 5
OTHER = "kvm-2"
_replace = msgspec.structs.replace

Send = Callable[[Role, str, str, object, str], Awaitable[int]]
Body = Callable[[Resource, str], tuple[str, object, str]]
"""Method, body and media type of one try, from the object as the attacker read it and the version that it names."""


def put(**changes: dict[str, Any]) -> Body:
    """Replaces the object with one in which these halves have these members."""

    def body(obj: Resource, version: str) -> tuple[str, object, str]:
        document = to_builtins(obj)
        document["metadata"]["resourceVersion"] = version
        for half, members in changes.items():
            document.setdefault(half, {}).update(members)
        return "PUT", document, "application/json"

    return body


def merge(**changes: object) -> Body:
    def body(_obj: Resource, version: str) -> tuple[str, object, str]:
        return "PATCH", {"metadata": {"resourceVersion": version}, **changes}, MERGE_PATCH

    return body


def json_patch(path: str, value: object) -> Body:
    def body(_obj: Resource, version: str) -> tuple[str, object, str]:
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        return "PATCH", [test, {"op": "add", "path": path, "value": value}], JSON_PATCH

    return body


def apply(**changes: object) -> Body:
    def body(obj: Resource, version: str) -> tuple[str, object, str]:
        head = {"apiVersion": "outlive.dev/v1alpha1", "kind": obj.kind()}
        return "PATCH", {**head, "metadata": {"name": obj.name, "resourceVersion": version}, **changes}, APPLY_PATCH

    return body


def delete() -> Body:
    def body(_obj: Resource, version: str) -> tuple[str, object, str]:
        return "DELETE", {"preconditions": {"resourceVersion": version}}, "application/json"

    return body


BMC = {"fencing": {"driver": "command", "address": "attacker"}}
ATTACKS: tuple[tuple[Role, type[Resource], str, str, Body], ...] = (
    (Role.OPERATOR, Hypervisor, HOST, "", put(spec=BMC)),
    (Role.OPERATOR, Hypervisor, HOST, "", merge(spec=BMC)),
    (Role.OPERATOR, Hypervisor, HOST, "", json_patch("/spec/fencing", BMC["fencing"])),
    (Role.OPERATOR, Hypervisor, HOST, "?fieldManager=m&force=true", apply(spec=BMC)),
    (Role.OPERATOR, Hypervisor, HOST, "/status", put(status={"lost": "f"})),
    (Role.OPERATOR, Membership, HOST, "", put(record={"machineId": "x", "bootId": "b", "deadThrough": 9})),
    (Role.OPERATOR, VirtualMachine, "vm", "/status", put(status={"recovery": {"fence": "f"}})),
    (Role.HOST, Cluster, "default", "/status", put(status={"sealingKey": "attackers"})),
    (Role.HOST, Cluster, "default", "/status", merge(status={"sealingKey": "attackers"})),
    (Role.HOST, VirtualMachine, "vm", "", put(spec={"definition": "<domain/>"})),
    (Role.HOST, VirtualMachine, "vm", "/status", put(status={"home": HOST, "phase": "x"})),
    (Role.HOST, VirtualMachine, "vm", "", delete()),
    (Role.HOST, Membership, OTHER, "", put(record={"machineId": "m", "bootId": "b", "state": "Revoked"})),
    (Role.COORDINATOR, Hypervisor, OTHER, "", put(spec=BMC)),
    (Role.CONTROLLER, Hypervisor, HOST, "/status", put(status={"rehearsed": "ok"})),
    (Role.CONTROLLER, Hypervisor, HOST, "", merge(spec={"mode": "coordinator"})),
    (Role.CONTROLLER, VirtualMachine, "vm", "", put(spec={"definition": "<domain/>"})),
    (Role.CONTROLLER, VirtualMachine, "vm", "", delete()),
)
"""Role, kind, name, the rest of the path, and the body of what that role may not write."""


async def furnished(store: Store) -> None:
    """A cluster with two hosts, their Memberships, and a VM of nobody's."""
    await store.create(Cluster(metadata=ObjectMeta(name="default")))
    await store.create(VirtualMachine(metadata=ObjectMeta(name="vm")))
    for name in (HOST, OTHER):
        await store.create(Hypervisor(metadata=ObjectMeta(name=name)))
        record = MemberRecord(machine_id="m", boot_id="b")
        await store.create(Membership(metadata=ObjectMeta(name=name), record=record))


async def touched(store: Store, kind: type[Resource], name: str, number: int) -> None:
    """What everybody does all the time: the object changes, and gets the next version."""
    now: Any = await store.get(kind, name, fresh=True)
    if isinstance(now, Membership):
        await store.replace(_replace(now, record=_replace(now.record, seq=number)))
    elif isinstance(now, Cluster):
        await store.replace(_replace(now, spec=_replace(now.spec, description=str(number))))
    else:
        await store.replace(_replace(now, metadata=_replace(now.metadata, annotations={"n": str(number)})))


async def harm(store: Store) -> list[dict[str, Any]]:
    """All that the attacks want to change, as it is now."""
    vm, cluster = await store.get(VirtualMachine, "vm"), await store.get(Cluster, "default")
    hosts = [await store.get(Hypervisor, name) for name in (HOST, OTHER)]
    members = [await store.get(Membership, name) for name in (HOST, OTHER)]
    records = [_replace(one.record, seq=0) for one in members]
    return [to_builtins(one) for one in (vm.spec, vm.status, cluster.status, *records)] + [
        to_builtins(part) for host in hosts for part in (host.spec, host.status)
    ]


def test_of_ten_thousand_guesses_none_gets_through(tmp_path: Path) -> None:
    async def attack() -> None:
        store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds())
        app = application(store)
        await furnished(store)
        before, answers = await harm(store), Counter[int]()
        rounds = -(-TRIES // (GUESSES * len(ATTACKS)))
        for number in range(rounds):
            for role, kind, name, rest, body in ATTACKS:
                read: Any = await store.get(kind, name, fresh=True)
                version = int(read.metadata.resource_version)
                path = f"{GROUP}/{kind.info.plural}/{name}{rest}"
                tries = [body(read, str(version + guess)) for guess in range(1, GUESSES + 1)]
                work = [ask(app, role, method, path, sent, media) for method, sent, media in tries]
                done = await asyncio.gather(touched(store, kind, name, number + 1), *work)
                answers.update(status for status, _ in filter(None, done))
        assert sum(answers.values()) >= TRIES
        assert set(answers) <= {403, 409, 422}, answers
        assert await harm(store) == before
        await store.close()

    run_real(attack(), limit_s=240.0)


@pytest.mark.component("openssl")
def test_none_gets_through_over_tls_either(tmp_path: Path) -> None:
    made, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=outlive", "-keyout", str(key), "-out", str(made)]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)

    async def attack() -> None:
        store = await SqliteStore.open(tmp_path, clock=SystemClock(), ids=SystemIds())
        await furnished(store)
        before, answers = await harm(store), Counter[int]()
        async with encrypted(store, made, key) as send:
            for number in range(TLS_ROUNDS):
                for role, kind, name, rest, body in ATTACKS:
                    read: Any = await store.get(kind, name, fresh=True)
                    path, version = f"{GROUP}/{kind.info.plural}/{name}{rest}", int(read.metadata.resource_version)
                    tries = [body(read, str(version + guess)) for guess in range(1, GUESSES + 1)]
                    work = [send(role, method, path, sent, media) for method, sent, media in tries]
                    done = await asyncio.gather(touched(store, kind, name, number + 1), *work)
                    answers.update(filter(None, done))
        assert sum(answers.values()) == TLS_ROUNDS * len(ATTACKS) * GUESSES
        assert set(answers) <= {403, 409, 422}, answers
        assert await harm(store) == before
        await store.close()

    run_real(attack())


@asynccontextmanager
async def encrypted(store: Store, made: Path, key: Path) -> AsyncIterator[Send]:
    """Our server with TLS over this store; sends one request and answers its status."""
    trusted = ssl.create_default_context(cafile=str(made))
    async with api(store, settings=ApiSettings(tls_certificate=str(made), tls_key=str(key))) as server:

        async def send(role: Role, method: str, path: str, body: object, media: str) -> int:
            headers = {"Content-Type": media}
            code, _, _ = await server.call(method, path, role=role, data=json.dumps(body), headers=headers, ssl=trusted)
            return code

        assert server.url.startswith("https://")
        yield send
