"""Compare-and-swap of a virtual machine's status: read fresh, decide on that, write, look again where it went wrong.

What is to be written is decided by a function that is called anew on every fresh reading and answers ``None`` once
there is nothing (more) to write. So a lost answer needs no rule of its own: the next reading shows what was applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.deadline import deadline
from outlive.base.errors import Conflict, NotFound, Unavailable, Unknown
from outlive.node.membership.death import MemberView, member_view
from outlive.resources import HOST_LABEL, Holder, Membership, VirtualMachine
from outlive.resources.vms import VirtualMachineStatus
from outlive.store import Store

TRIES: Final = 6
"""Writes of one change before whoever wants it has to come again."""
RETRY_S: Final = 0.2
"""The wait after the second lost swap; it doubles."""
CALL_S: Final = 5.0
"""How long one call of the store may take."""

Change = Callable[[VirtualMachine], VirtualMachineStatus | None]
"""From what was read to the status to write; ``None``: nothing."""

_replace = msgspec.structs.replace


class VmRecords:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def read(self, store: Store, name: str) -> VirtualMachine | None:
        """As it is now; ``None`` if there is none."""
        try:
            with deadline(CALL_S):
                return await store.get(VirtualMachine, name, fresh=True)
        except NotFound:
            return None
        except TimeoutError:
            raise Unavailable(f"the store did not answer about {name} within {CALL_S:g} s") from None

    async def change(self, store: Store, name: str, change: Change) -> VirtualMachine | None:
        """The virtual machine after the change, or as it was found where there was nothing to write; ``None``: gone.

        ``Unavailable`` where the store is away, or the change did not get through in ``TRIES``.
        """
        for attempt in range(TRIES):
            if attempt > 1:
                await self._clock.sleep(RETRY_S * 2.0 ** (attempt - 2))
            vm = await self.read(store, name)
            status = change(vm) if vm is not None else None
            if vm is None or status is None or status == vm.status:
                return vm
            try:
                with deadline(CALL_S):
                    return await store.replace_status(_replace(vm, status=status))
            except (Conflict, NotFound, Unknown, TimeoutError):
                continue
        raise Unavailable(f"{name} could not be changed in {TRIES} tries", remedy="others keep changing it")

    async def relabel(self, store: Store, name: str, host: str) -> bool:
        """Let ``host`` be told of the virtual machine; whether it is there. Before it is assigned, always."""
        for attempt in range(TRIES):
            if attempt > 1:
                await self._clock.sleep(RETRY_S * 2.0 ** (attempt - 2))
            vm = await self.read(store, name)
            if vm is None:
                return False
            if vm.metadata.labels.get(HOST_LABEL) == host:
                return True
            labels = {**vm.metadata.labels, HOST_LABEL: host}
            try:
                with deadline(CALL_S):
                    await store.replace(_replace(vm, metadata=_replace(vm.metadata, labels=labels)))
            except (Conflict, NotFound, Unknown, TimeoutError):
                continue
        raise Unavailable(f"{name} could not be labelled in {TRIES} tries", remedy="others keep changing it")

    async def members(self, store: Store, holders: Iterable[Holder], *, but: str = "") -> tuple[MemberView, ...]:
        """The memberships that these holders' entries name, except those of one host; missing ones are left out."""
        found: list[MemberView] = []
        for host in sorted({one.hypervisor for one in holders} - {but}):
            try:
                with deadline(CALL_S):
                    found.append(member_view(await store.get(Membership, host, fresh=True)))
            except NotFound:
                continue
            except TimeoutError:
                raise Unavailable(f"the store did not answer about {host} within {CALL_S:g} s") from None
        return tuple(found)
