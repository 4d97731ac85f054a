"""The domains of this host as the hypervisor listed them last, creates that are under way, and foreign domains.

Everybody in the daemon shares one picture. A listing that was asked for earlier never replaces one that was asked for
later, so after ``refresh`` returns, the picture is not older than that call. Between two looks a domain may end by
itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from outlive.base import Clock, OutliveError, Unavailable, Unknown, deadline, get_logger
from outlive.node.ports import Domain, DomainState, HypervisorPort
from outlive.resources import Hypervisor, VirtualMachine, has_uuid
from outlive.store import LIST_S, Store, list_all, read, require_answer

T = TypeVar("T")
PRESENT: Final = frozenset({DomainState.RUNNING, DomainState.PAUSED})
"""States in which a domain is a virtual machine of this host, and not one on its way in or out."""
_log = get_logger("node.domains")


class LocalDomains:
    """See the module."""

    def __init__(self, hypervisor: HypervisorPort, clock: Clock, *, limit_s: float) -> None:
        self.hypervisor = hypervisor
        self.by_vm: dict[str, Domain] = {}
        """By virtual machine."""
        self.foreign: dict[str, Domain] = {}
        """By the hypervisor's name for it, what Outlive did not make (``ForeignDomains``)."""
        self.creating: dict[str, str] = {}
        """Virtual machine → run, from before a create of this daemon until a later picture shows what became of it."""
        self.looked = False
        """Whether the picture was ever taken."""
        self._clock = clock
        self._limit_s = limit_s
        self._asked = 0
        self._shown = 0
        self._ended: dict[str, int] = {}
        """Virtual machine → how often had been looked when the call that creates it ended."""
        self._doubtful: dict[str, Domain] = {}
        """By name, the domain that was to be ended, from before that was asked until it is known to be done."""
        self.ending: frozenset[str] = frozenset()
        """Names of those of them that the last listing did not show: each is in the picture for nothing else."""
        self.on_change: Callable[[str], None] = lambda vm: None
        """Called with the virtual machine whose domain changed; it must not block."""
        self.on_look: Callable[[float], None] = lambda seconds: None
        """Called with the seconds that each listing took; it must not block."""

    def list_names(self) -> tuple[str, ...]:
        """Virtual machines with a domain here or a create under way, sorted."""
        return tuple(sorted({*self.by_vm, *self.creating}))

    def list_present(self) -> list[Domain]:
        """Domains that count as virtual machines of this host, by name."""
        return [one for _, one in sorted(self.by_vm.items()) if one.state in PRESENT]

    def split(self) -> list[Domain]:
        """Domains without whose memory a guest on another host, or here, is lost, by name."""
        return [one for _, one in sorted(self.by_vm.items()) if one.split]

    def outside_slice(self) -> tuple[str, ...]:
        """Virtual machines with a process that the guard of this host would not end, by name."""
        return tuple(vm for vm, one in sorted(self.by_vm.items()) if not one.guarded)

    def begin(self, vm: str, run_id: str) -> None:
        """A domain is about to be created."""
        self.creating[vm] = run_id
        self._ended.pop(vm, None)

    def note_created(self, vm: str) -> None:
        """The call that creates it came back, with whatever answer; only a look that begins now says what is here."""
        self._ended[vm] = self._asked

    async def refresh(self) -> None:
        """Take a new picture. ``Unavailable`` if the hypervisor does not answer."""
        self._asked += 1
        asked, began_s = self._asked, self._clock.monotonic()
        try:
            with deadline(self._limit_s):
                listed = await self.hypervisor.list_domains()
        except (TimeoutError, Unknown) as error:
            self.on_look(max(0.0, self._clock.monotonic() - began_s))
            raise Unavailable(f"the hypervisor did not list its domains: {error or 'no answer in time'}") from error
        self.on_look(max(0.0, self._clock.monotonic() - began_s))
        if asked < self._shown:
            return
        self._shown = asked
        self.looked = True
        for vm in [vm for vm, then in self._ended.items() if asked > then]:
            del self._ended[vm]
            del self.creating[vm]
        shown = (*self._doubtful.values(), *listed)  # of one that is listed, what is listed counts
        before, self.by_vm = self.by_vm, {one.vm: one for one in shown if not one.uuid}
        self.foreign = {one.uuid: one for one in shown if one.uuid}
        ended, self.ending = self.ending, frozenset(self._doubtful) - {one.uuid or one.vm for one in listed}
        for vm in sorted({*before, *self.by_vm}):
            if before.get(vm) != self.by_vm.get(vm) or (vm in ended) != (vm in self.ending):
                self.on_change(vm)

    async def list_problems(self) -> tuple[str, ...]:
        """What else starts domains here (``HypervisorPort``). ``Unavailable`` where nobody answers in time."""
        try:
            with deadline(self._limit_s):
                return await self.hypervisor.list_problems()
        except (TimeoutError, Unknown) as error:
            raise Unavailable(f"the hypervisor did not answer: {error or 'no answer in time'}") from error

    async def start_and_refresh(self) -> None:
        """Take a new picture, and start the hypervisor service where it does not answer: the guard may have stopped it.

        ``Unavailable`` if it does not answer then either.
        """
        try:
            await self.refresh()
        except Unavailable:
            await self.start_service()
            await self.refresh()

    async def shutdown(self, vm: str) -> None:
        """Ask the guest to end. ``Unknown`` where nobody answers in time; other errors as they come."""
        await self._call_with_limit(self.hypervisor.shutdown(vm), f"the request that {vm} shuts down")

    async def resume(self, vm: str, run_id: str) -> None:
        """Let the paused or handed-over domain of that run go on. ``Unknown`` where nobody answers in time."""
        await self._call_with_limit(self.hypervisor.resume(vm, run_id=run_id), f"the request that {vm} runs on")

    async def list_devices(self, vm: str, run_id: str) -> Mapping[str, str]:
        """As of ``HypervisorPort``; ``Unknown`` where nobody answers in time."""
        return await self._call_with_limit(self.hypervisor.list_devices(vm, run_id=run_id), f"which devices {vm} has")

    async def attach(self, vm: VirtualMachine, device: str, run_id: str) -> None:
        """As of ``HypervisorPort``; ``Unknown`` where nobody answers in time."""
        await self._call_with_limit(
            self.hypervisor.attach(vm, device, run_id=run_id), f"the request to attach {device}"
        )

    async def detach(self, vm: str, device: str, run_id: str) -> None:
        """As of ``HypervisorPort``; ``Unknown`` where nobody answers in time."""
        await self._call_with_limit(
            self.hypervisor.detach(vm, device, run_id=run_id), f"the request to detach {device}"
        )

    async def start_service(self) -> None:
        """See to it that the hypervisor service runs. ``Unknown`` where nobody answers in time."""
        await self._call_with_limit(self.hypervisor.start_service(), "the start of the hypervisor service")

    async def _call_with_limit(self, call: Awaitable[T], what: str) -> T:
        try:
            with deadline(self._limit_s):
                return await call
        except TimeoutError:
            raise Unknown(f"{what} was not answered within {self._limit_s:g} s") from None

    async def decline(self, vm: str, run_id: str) -> bool:
        """End what waits for a guest and look; whether it is certain that it never ran."""
        try:
            certain = await self._end(self.hypervisor.decline(vm, run_id), vm, run_id)
        except OutliveError as error:
            _log.warning("domain.not_declined", vm=vm, error=str(error))
            certain = False
        await self.refresh()
        return certain

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> bool:
        """Stop it hard and look; whether no domain of it (or of that run) is left. ``uuid``: as of ``HypervisorPort``.

        A kill that is not known to be done proves nothing, whatever a look shows after it: a process that hangs in the
        kernel may be seen by nobody. Its domain stays in the picture until a later call is known to be done.
        """
        done = await self._end(self.hypervisor.destroy(vm, run_id=run_id, uuid=uuid), vm, run_id, uuid)
        await self.refresh()
        left = self.foreign.get(uuid) if uuid else self.by_vm.get(vm)
        return done and (left is None or (run_id != "" and left.run_id != run_id))

    async def _end(self, call: Awaitable[None], vm: str, run_id: str, uuid: str = "") -> bool:
        """Whether the domain (of that run, or of that UUID, where one is named) is known to have ended."""
        key = uuid or vm
        known = self.foreign.get(uuid) if uuid else self.by_vm.get(vm)
        if known is not None and run_id in ("", known.run_id):
            self._doubtful[key] = known
        try:
            with deadline(self._limit_s):
                await call
        except (TimeoutError, Unavailable, Unknown) as error:
            _log.warning("domain.not_ended", vm=vm, run_id=run_id, error=str(error) or "no answer in time")
            return False
        except OutliveError:
            self._doubtful.pop(key, None)
            raise
        self._doubtful.pop(key, None)
        return True


STRANGER_S: Final = 30.0
"""How often is looked whether a foreign domain has become a virtual machine of the store."""


class ForeignDomains:
    """Domains that Outlive did not make: what is a virtual machine of the store is ended, anything else left alone.

    Such a domain has no entry, so the same virtual machine may run elsewhere: it was recovered while this host was
    away, and the hypervisor service started it here at the boot. So it has to go before this host joins, and nothing
    starts here while one is left or nobody knows whose it is.
    """

    def __init__(self, domains: LocalDomains, store: Store, clock: Clock, host: str) -> None:
        self._domains = domains
        self._host = host
        self._store = store
        self._clock = clock
        self._strangers: dict[str, float] = {}
        """UUID of what was no virtual machine of the store, and until when (monotonic) that counts."""

    @property
    def strangers(self) -> tuple[str, ...]:
        """Names of those that are no virtual machines of the store."""
        return tuple(sorted(one.vm for uuid, one in self._domains.foreign.items() if uuid in self._strangers))

    @property
    def others(self) -> tuple[str, ...]:
        """Names of those that are, or of which nobody knows."""
        return tuple(sorted(one.vm for uuid, one in self._domains.foreign.items() if uuid not in self._strangers))

    def find_blockers(self, vm: VirtualMachine) -> tuple[str, ...]:
        """Names of those because of which this virtual machine must not start here now."""
        for one in self._domains.foreign.values():
            if _is_same_vm(one, vm):
                self._strangers.pop(one.uuid, None)
        return self.others

    async def end(self) -> tuple[str, ...]:
        """End those of the store's virtual machines that the last look has shown; names of those that are left.

        Errors of the store and of the hypervisor, as they come.
        """
        here, now_s = {one.uuid for one in self._domains.foreign.values()}, self._clock.monotonic()
        self._strangers = {
            uuid: until_s for uuid, until_s in self._strangers.items() if uuid in here and until_s > now_s
        }
        if not self.others:
            return ()
        found = [one for one in self._domains.foreign.values() if one.uuid not in self._strangers]
        vms: dict[str, str] = {}  # by the UUID of a domain; none where somebody else manages this host
        with require_answer("which virtual machines there are", LIST_S):
            host = await read(self._store, Hypervisor, self._host)
            if host is None or host.spec.management == "node":
                async for vm in list_all(self._store, VirtualMachine):
                    vms |= {one.uuid: vm.name for one in found if _is_same_vm(one, vm)}
        for one in found:
            if one.uuid not in vms:
                self._strangers[one.uuid] = now_s + STRANGER_S
                continue
            _log.warning("domain.foreign_ended", domain=one.vm, uuid=one.uuid, vm=vms[one.uuid])
            await self._domains.destroy(one.vm, uuid=one.uuid)
        return self.others


def _is_same_vm(domain: Domain, vm: VirtualMachine) -> bool:
    """Whether a domain that Outlive did not make is that virtual machine: by its UUID, since names are anybody's."""
    return domain.uuid == vm.name or has_uuid(vm.spec.definition, domain.uuid)
