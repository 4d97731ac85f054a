"""Kind × role × verb × field against a real API server with our webhook, and against our own API over the same store.

What the one refuses the other one refuses. All of it: ``.venv/bin/python -m tests.support.direct_matrix``, which needs
the component ``kubernetes`` and some minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from outlive.api import CHECKED, Role
from outlive.resources import KINDS, Hypervisor, HypervisorSpec, ObjectMeta, Resource, VirtualMachine, to_builtins
from outlive.store import Store
from tests.support.api_server import ApiServer, shared_server
from tests.support.asgi import application, ask
from tests.support.matrix import NAME, fields_of, fitting, with_changed
from tests.support.webhook import GROUP, Send, controllers_store, open_to_all, sending, webhook

ROLES = tuple(sorted(CHECKED))
Case = tuple[type[Resource], Role, str]
"""Kind, role, and what is written: ``create``, ``delete``, or a field."""
REFUSED = (403, 409, 422)
"""By rule, by schema, by a check before the write."""
NOT_WRITTEN_OUT = "are not as its definition says"
"""A webhook that only validates refuses what our own API would complete."""
_replace = msgspec.structs.replace


def cases(kinds: Iterable[type[Resource]] = KINDS.values(), roles: Iterable[Role] = ROLES) -> Iterator[Case]:
    """Every combination."""
    for kind in kinds:
        for role in roles:
            yield from ((kind, role, what) for what in ("create", "delete", *fields_of(kind)))


async def furnish(server: ApiServer, store: Store, kind: type[Resource], role: Role) -> Any:
    """An empty store with the object that the role has to do with, and what the rules look at."""
    await asyncio.to_thread(server.empty)
    spec = HypervisorSpec(management="node")
    spec = _replace(spec, mode="coordinator") if role is Role.COORDINATOR else spec
    host = await store.create(Hypervisor(metadata=ObjectMeta(name=NAME), spec=spec))
    if kind is Hypervisor:
        return host
    obj: Any = fitting(kind, role)
    if kind is not VirtualMachine:
        vm: Any = fitting(VirtualMachine, role)
        found = await store.create(vm)
        await store.replace_status(_replace(found, status=vm.status))
    now: Any = await store.create(obj)
    return await store.replace_status(_replace(now, status=obj.status)) if kind.has_status() else now


async def disagreements(server: ApiServer, send: Send, wanted: Iterable[Case]) -> list[str]:
    """Where the API server and our own API do not answer alike; nothing of all this is written."""
    found: list[str] = []
    before: tuple[type[Resource], Role] | None = None
    now: Any = None
    async with controllers_store(server) as store:
        app = application(store)
        for kind, role, what in wanted:
            if before != (kind, role):
                before, now = (kind, role), await furnish(server, store, kind, role)
            for method, path, document in requests(kind, now, what, role):
                target = f"{GROUP}/{kind.info.plural}{path}?dryRun=All"
                ours, ours_said = await ask(app, role, method, target, document)
                theirs, theirs_said = await send(method, target, document, role=role)
                text = str(theirs_said.get("message", ""))
                alike = (ours < 300) == (theirs < 300) and (ours != 403 or theirs in REFUSED)
                alike = alike or (ours < 300 and NOT_WRITTEN_OUT in text)
                if not alike or theirs >= 500:
                    said = f"{ours} {ours_said.get('message', '')} | {theirs} {text}"
                    found.append(f"{role} {method} {kind.__name__}{path} {what}: {said}")
    return found


def requests(kind: type[Resource], now: Any, what: str, role: Role) -> Iterator[tuple[str, str, Any]]:
    """The requests that make this change: method, path below the kind, body."""
    if what == "delete":
        yield "DELETE", f"/{now.name}", None
        return
    if what == "create":
        new = fitting(kind, role)
        document = to_builtins(_replace(new, metadata=_replace(new.metadata, name=f"{new.name}-new")))
        document.pop("status", None)
        yield "POST", "", document
        return
    document = to_builtins(with_changed(now, what))
    in_status = kind.has_status() and what.startswith("status")
    yield "PUT", f"/{now.name}{'/status' if in_status else ''}", document


async def whole() -> int:
    """Every combination; the number of disagreements, which are printed."""
    server = shared_server()
    open_to_all(server)
    with tempfile.TemporaryDirectory() as folder:
        async with sending(server) as send, webhook(server, Path(folder), send):
            wanted = list(cases())
            found = await disagreements(server, send, wanted)
    print("\n".join(found))
    print(f"{len(wanted)} combinations, {len(found)} disagreements")
    return len(found)


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(whole()) else 0)
