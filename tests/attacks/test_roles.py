"""A stolen token writes nothing that belongs to others, and its thief gets there by no detour."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.attacks.conftest import Attacked

pytestmark = pytest.mark.component("openssl")

GROUP = "/apis/outlive.dev/v1alpha1"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
ME, OTHER = "kvm-1", "kvm-2"
FINALIZER = "outlive.dev/may-run"
AT = "2030-01-01T00:00:00Z"
PROOF = {"kind": "power", "by": "kvm-3", "evidence": "off", "epoch": 1, "at": AT}
MINE = {"hypervisor": ME, "memberUid": "u", "epoch": 1, "runId": "r"}

KINDS = {
    "hypervisors": "Hypervisor",
    "memberships": "Membership",
    "faults": "Fault",
    "virtualmachines": "VirtualMachine",
}

Attack = tuple[str, str, dict[str, Any]]
"""Method, path, and what is changed by a merge patch, or the object that is made."""


def fault(name: str, kind: str, subject: str, reporter: str, host: str, **more: object) -> dict[str, Any]:
    labels = {"outlive.dev/reporter": reporter, "outlive.dev/host": host}
    return {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "Fault",
        "metadata": {"name": f"{name}.{subject}", "labels": labels if host else {"outlive.dev/reporter": reporter}},
        "code": name,
        "subject": {"kind": kind, "name": subject},
        "message": "m",
        "firstSeen": AT,
        "lastSeen": AT,
        **more,
    }


def records(name: str) -> list[Attack]:
    """What would have that host count as dead, gone or another one, and so let its VMs start elsewhere."""
    return [
        ("PATCH", f"memberships/{name}", {"record": changes})
        for changes in (
            {"state": "Revoked"},
            {"deadThrough": 9},
            {"proof": PROOF},
            {"machineId": "another"},
            {"epoch": 9},
            {"cut": {"through": 9, "scope": ["disk:a"], "proof": PROOF}},
            {"fence": {"id": "f", "epoch": 1, "phase": "proven", "by": ME}},
        )
    ]


def vm_status(*changes: dict[str, Any]) -> list[Attack]:
    return [("PATCH", "virtualmachines/theirs/status", {"status": one}) for one in changes]


def key(value: str = "attackers") -> Attack:
    return "PATCH", "clusters/default/status", {"status": {"sealingKey": value}}


STRANGER = fault("made-up", "VirtualMachine", "theirs", "daemon", ME, delta=100)
ATTACKS: dict[str, list[Attack]] = {
    "operator": [
        *records(ME),
        *records(OTHER),
        ("PATCH", f"hypervisors/{ME}/status", {"status": {"lost": "f"}}),
        ("PATCH", f"hypervisors/{ME}/status", {"status": {"rehearsed": "ok"}}),
        ("PATCH", f"hypervisors/{ME}/status", {"status": {"addresses": {"cluster": "192.0.2.1"}}}),
        ("PATCH", f"hypervisors/{ME}", {"spec": {"fencing": {"driver": "command", "address": "attacker"}}}),
        *vm_status({"holders": []}, {"holders": [MINE]}, {"recovery": {"fence": "f"}}),
        ("POST", "faults", STRANGER),
        ("PATCH", "faults/vm-failed.theirs", {"ended": True}),
        key(),
    ],
    "host": [
        *records(OTHER),
        ("PATCH", f"memberships/{ME}", {"record": {"deadThrough": 1, "proof": PROOF}}),
        *vm_status({"holders": [MINE]}, {"assigned": {"hypervisor": ME}}, {"home": ME}, {"phase": "Failed"}),
        *vm_status({"migration": {"id": "m", "source": OTHER, "target": ME}}),
        ("PATCH", "virtualmachines/theirs", {"spec": {"definition": "<domain/>"}}),
        ("DELETE", "virtualmachines/theirs", {}),
        ("POST", "faults", STRANGER),
        ("POST", "faults", fault("down", "Cluster", "default", "daemon", ME, delta=100)),
        ("PATCH", "faults/vm-failed.theirs", {"ended": True}),
        ("PATCH", "faults/vm-failed.theirs", {"metadata": {"labels": {"outlive.dev/host": ME}}, "ended": True}),
        ("PATCH", "clusters/default/status", {"status": {"pause": None}}),
        key(),
    ],
    "coordinator": [*records(OTHER), ("POST", "faults", fault("fence-failed", "Hypervisor", OTHER, "fencer", ""))],
    "controller": [
        *records(OTHER),
        *vm_status({"holders": []}),
        ("PATCH", "virtualmachines/theirs", {"metadata": {"finalizers": ["another"]}}),
        ("DELETE", f"hypervisors/{OTHER}", {}),
        ("DELETE", "virtualmachines/theirs", {}),
        ("PATCH", f"hypervisors/{ME}", {"spec": {"mode": "coordinator"}}),
        key(),
    ],
}
"""What each role tries. The host is kvm-1, and kvm-1 is no coordinator (any more)."""


@asynccontextmanager
async def sending(attacked: Attacked, token: str) -> AsyncIterator[Any]:
    """What sends one request as the owner of the token."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:

        async def send(method: str, path: str, body: object = None, media: str = "") -> tuple[int, Any]:
            headers = {"Content-Type": media or (MERGE if method == "PATCH" else "application/json")}
            url = f"{attacked.server.url}{GROUP}/{path}"
            async with session.request(method, url, json=body, headers=headers, ssl=attacked.tls) as answer:
                return answer.status, await answer.json(content_type=None)

        yield send


async def furnish(send: Any) -> str:
    """Two hosts with their Memberships, the first one registered, and a VM that the other one holds, with a console and
    a fault. Answers the incarnation of the store."""
    head = {"apiVersion": "outlive.dev/v1alpha1"}
    for name in (ME, OTHER):
        meta = {"metadata": {"name": name}}
        host = {**head, "kind": "Hypervisor", **meta, "spec": {"management": "node"}}
        record = {"machineId": "m", "bootId": "b"}
        assert (await send("POST", "hypervisors", host))[0] == 201
        assert (await send("POST", "memberships", {**head, "kind": "Membership", **meta, "record": record}))[0] == 201
    incarnation = ""
    while not incarnation:
        incarnation = (await send("GET", "clusters/default"))[1].get("status", {}).get("storeIncarnation", "")
    _, theirs = await send("GET", f"memberships/{OTHER}")
    registered = {"record": {"incarnation": incarnation}}
    assert (await send("PATCH", f"memberships/{ME}", registered))[0] == 200
    vm = {**head, "kind": "VirtualMachine", "metadata": {"name": "theirs"}, "spec": {}}
    assert (await send("POST", "virtualmachines", vm))[0] == 201
    held = {"hypervisor": OTHER, "memberUid": theirs["metadata"]["uid"], "epoch": 1, "runId": "r"}
    status = {"assigned": {"hypervisor": OTHER}, "holders": [held], "phase": "Running"}
    assert (await send("PATCH", "virtualmachines/theirs/status", {"status": status}))[0] == 200
    marked = {"metadata": {"finalizers": [FINALIZER]}}
    assert (await send("PATCH", "virtualmachines/theirs", marked))[0] == 200
    text = {"host": OTHER, "text": "root password: hunter2", "changedAt": AT}
    console = {**head, "kind": "Console", "metadata": {"name": "theirs"}, **text}
    assert (await send("POST", "consoles", console))[0] == 201
    made = fault("vm-failed", "VirtualMachine", "theirs", "daemon", OTHER)
    assert (await send("POST", "faults", made))[0] == 201
    return incarnation


async def seen(send: Any) -> list[Any]:
    """What the attacks want to change, as an administrator sees it."""
    found: list[Any] = []
    for name in (ME, OTHER):
        host = (await send("GET", f"hypervisors/{name}"))[1]
        status = host.get("status", {})
        found += [host["spec"], *(status.get(one) for one in ("lost", "rehearsed", "addresses"))]
        found.append((await send("GET", f"memberships/{name}"))[1]["record"])
    vm = (await send("GET", "virtualmachines/theirs"))[1]
    found += [vm["spec"], vm["metadata"].get("finalizers"), "deletionTimestamp" in vm["metadata"]]
    found += [vm["status"].get(one) for one in ("holders", "assigned", "home", "migration", "phase")]
    found.append((await send("GET", "clusters/default"))[1]["status"]["sealingKey"])
    faults = (await send("GET", "faults"))[1]["items"]
    made = {"made-up.theirs", "down.default", f"fence-failed.{OTHER}"} & {one["metadata"]["name"] for one in faults}
    theirs = next(one for one in faults if one["metadata"]["name"] == "vm-failed.theirs")
    return [*found, made, theirs.get("ended", False), theirs["metadata"]["labels"]]


@pytest.mark.parametrize("role", ATTACKS)
async def test_a_stolen_token_writes_nothing_of_others(attacked: Attacked, role: str) -> None:
    token = await attacked.token(f"stolen-{role}", role, ME if role in ("host", "coordinator") else "")
    async with sending(attacked, attacked.admin) as admin, sending(attacked, token) as send:
        pause = {"reason": "went-back", "since": AT, "waitsFor": [OTHER]}
        cluster = {"storeIncarnation": await furnish(admin), "pause": pause}
        assert (await admin("PATCH", "clusters/default/status", {"status": cluster}))[0] == 200
        before, answers = await seen(admin), {}
        for method, path, body in ATTACKS[role]:
            status, _ = await send(method, path, body)
            answers[method, path, json.dumps(body)] = status
            if method == "PATCH" and "/status" not in path:
                applied = {"apiVersion": "outlive.dev/v1alpha1", "kind": KINDS[path.partition("/")[0]], **body}
                status, _ = await send(method, f"{path}?fieldManager=m&force=true", applied, APPLY)
                answers["apply", path, json.dumps(body)] = status
        assert {what: status for what, status in answers.items() if status != 403} == {}
        assert await seen(admin) == before


async def test_no_host_reads_the_console_of_a_vm_by_making_itself_one_of_its_hosts(attacked: Attacked) -> None:
    token = await attacked.token("stolen", "host", ME)
    async with sending(attacked, attacked.admin) as admin, sending(attacked, token) as send:
        await furnish(admin)
        uid = (await admin("GET", f"memberships/{ME}"))[1]["metadata"]["uid"]
        entry = {**MINE, "memberUid": uid}
        theirs = (await admin("GET", "virtualmachines/theirs"))[1]["status"]["holders"]
        tries = [
            {"holders": [*theirs, entry]},
            {"holders": [*theirs, {**entry, "role": "incoming"}]},
            {"migration": {"id": "m", "source": OTHER, "target": ME}},
            {"assigned": {"hypervisor": ME}, "holders": [*theirs, entry]},
        ]
        for status in tries:
            assert (await send("PATCH", "virtualmachines/theirs/status", {"status": status}))[0] == 403, status
            assert (await send("GET", "consoles/theirs"))[0] == 403
        labels = {"metadata": {"labels": {"outlive.dev/host": ME}}}
        assert (await send("PATCH", "virtualmachines/theirs", labels))[0] == 403
        assert (await send("GET", "consoles/theirs"))[0] == 403


async def test_a_host_empties_itself_with_its_own_token_and_no_other_host(attacked: Attacked) -> None:
    """So no token of an operator has to lie on it."""
    token = await attacked.token("own", "host", ME)
    async with sending(attacked, attacked.admin) as admin, sending(attacked, token) as send:
        await furnish(admin)
        for drain in (True, False):
            assert (await send("PATCH", f"hypervisors/{ME}", {"spec": {"drain": drain}}))[0] == 200
            assert (await send("PATCH", f"hypervisors/{OTHER}", {"spec": {"drain": True}}))[0] == 403
