"""What a user asks for a VM, once: one write of ``spec.request`` under a new id, which its host answers."""

from __future__ import annotations

import contextlib
from typing import Final, Literal

import msgspec

from outlive.base.errors import Conflict, NotFound, Refused, Usage
from outlive.base.ids import Ids
from outlive.resources import Hypervisor, VirtualMachine
from outlive.resources.vms import Request
from outlive.store import Store

ATTEMPTS: Final = 5
"""Swaps that are tried before the command gives up against other writers."""

RequestVerb = Literal["start", "stop", "shutdown", "restart", "disable", "migrate", "unmigrate", "move"]

_replace = msgspec.structs.replace


async def request_vm(
    store: Store, ids: Ids, vm: str, verb: RequestVerb, *, target: str = "", force: bool = False
) -> str:
    """Ask for it, and say under which id it is answered. ``NotFound``; ``Usage`` for a host where none belongs.

    ``Refused`` where nobody would answer: the VM has no host, or one without our daemon, or is to go to such a one.
    """
    if target and verb not in ("migrate", "move"):
        raise Usage(f"{verb} goes to no other host", place="--to", remedy="leave it out")
    if target:
        _check_ours(await store.get(Hypervisor, target), vm)
    for attempt in range(ATTEMPTS):
        found = await store.get(VirtualMachine, vm, fresh=True)
        where = found.status.assigned
        if where is None:
            why = f"{vm} is assigned to no host, so nobody would answer"
            raise Refused(why, remedy=f"outlive describe vm {vm} says how it stands")
        with contextlib.suppress(NotFound):  # its document may be lost; its daemon answers all the same
            _check_ours(await store.get(Hypervisor, where.hypervisor), vm)
        request = Request(id=ids.uuid(), verb=verb, target=target, force=force)
        try:
            await store.replace(_replace(found, spec=_replace(found.spec, request=request)))
        except Conflict:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        return f"{vm}: {verb} is asked for as {request.id}; {where.hypervisor} answers (outlive describe vm {vm})"
    raise AssertionError("unreachable")


def _check_ours(host: Hypervisor, vm: str) -> None:
    if host.spec.management != "node":
        why = f"{host.name} is managed by {host.spec.management}, so nobody here would answer"
        raise Refused(why, remedy=f"ask for {vm} there")
