"""The hypervisor of one host: the domains that exist there, and their ends."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from outlive.resources import VirtualMachine, Vnc


class DomainState(StrEnum):
    """What a domain is doing."""

    STARTING = "starting"
    """Its creation was asked for, by this daemon or by one before it, and has not ended: it may yet run, or not."""
    RUNNING = "running"
    PAUSED = "paused"
    """It exists and does not run: before its first start, or because somebody paused it."""
    INCOMING = "incoming"
    """It waits for the state of a migration."""
    HANDED_OVER = "handed-over"
    """Its state was sent completely; it must not run again unless the target is known never to have run."""
    OFF = "off"
    """It ended by itself: the guest shut down, or crashed."""


class Domain(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One domain; ``run_id`` and ``epoch`` are kept in its own metadata, so that a new daemon knows them."""

    vm: str
    run_id: str
    """Empty where a process of the VM exists and nobody knows of which run it is."""
    epoch: int
    state: DomainState
    cpu_milli: int = 0
    memory_bytes: int = 0
    crashed: bool = False
    """For ``OFF``: whether nobody asked for it."""
    guarded: bool = True
    """Whether all its processes are in the slice that the guard empties; what is outside survives the guard."""
    listens: str = ""
    """For ``INCOMING``: where it waits for the state, as ``migrate`` is to be told."""
    uuid: str = ""
    """Of a domain that Outlive did not make: the service started it by itself, or somebody by hand. ``vm`` is the
    service's name for it. Empty: Outlive made it."""
    split: bool = False
    """Whether parts of its memory are on either host of a move by post-copy: where one domain is lost, both are.

    Its source, which is handed over, is needed by the target and never runs again; its target runs.
    """
    vnc: Vnc | None = None
    """Where its screen is; the same for as long as it exists."""
    io_error: bool = False
    """For ``PAUSED``: whether the hypervisor paused it because a disk did not serve it, and nobody else has."""


class DiskIo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the disks of one guest do at a moment."""

    vm: str
    run_id: str
    pending: int
    """Requests, or threads of its process, that wait for an answer of a disk, as far as that is known."""
    done: int | None
    """Requests that its disks have answered in this run; ``None``: its process did not say, because it stands still as
    well."""


class MigrationSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How a guest is moved while it runs. Both sides are given the same."""

    downtime_ms: int = 300
    """The longest pause that is meant; nobody can promise it."""
    bandwidth_mib_s: int = 0
    """At most so many MiB a second; 0: no limit."""
    auto_converge: bool = False
    """Slow the guest down where it changes its memory faster than that is sent."""
    post_copy: bool = False
    """The target can, and the source is to, let it run there before all of its memory is there.

    Once it was switched to that, it is lost if either side is lost before the end.
    """
    multifd: int = 0
    """Connections that send memory side by side; 0: one connection sends everything."""
    tls: bool = False
    """Encrypted, and both sides show certificates."""
    time_limit_s: float = 0.0
    """Called off after so long, and the guest stays; 0: as long as the caller waits."""
    stall_limit_s: float = 0.0
    """Called off once it was no nearer to its end for so long, and the guest stays; 0: as long as the caller waits.

    Each pass over the memory that begins with less than any before, and what is sent in it, is nearer.
    """


POST_COPY_STALL_S: Final = 60.0
"""After so long without anything more that arrives, post-copy is given up: the guest stands still meanwhile."""


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a guest is that is being sent."""

    phase: str
    """As QEMU names it: ``setup``, ``active``, ``pre-switchover``, ``device``, ``completed``."""
    total_bytes: int = 0
    sent_bytes: int = 0
    remaining_bytes: int = 0
    expected_downtime_ms: int = 0
    took_ms: int = 0


class HypervisorPort(Protocol):
    """The hypervisor of one host, as its daemon reaches it.

    If the hypervisor service is stopped, every call but ``start_service`` raises ``Unavailable``, and guests run on.
    After ``Unknown`` the daemon calls ``list_domains``, which lists what really exists.
    """

    async def list_domains(self) -> tuple[Domain, ...]:
        """All domains that exist on this host, in the order of VM names.

        A VM that is not listed has no process on this host: the driver looks at the processes themselves (those of
        the VM's cgroup, and any other that carries its mark), not only at the service's list. A domain that the service
        has lost is listed as running, from the data of its process. A process outside the guests' slice is
        listed as not ``guarded``. A guest that Outlive did not make is listed as well, with its ``uuid``.

        While a ``create`` lasts, the domain is listed as ``starting``, also if the caller is dead, if the driver has
        not passed the order on yet, or if the service still queues it. An order of a dead process that is not listed
        never takes effect. Each answer is of a moment after its call.
        """
        ...

    async def list_problems(self) -> tuple[str, ...]:
        """What on this host starts domains besides its daemon, such as the service at a boot; each names its remedy.

        While there is any, ``create`` is ``Refused``: such domains run without an entry in the store.
        """
        ...

    async def create(
        self, vm: VirtualMachine, *, run_id: str, epoch: int, incoming: MigrationSettings | None = None
    ) -> None:
        """Create and start a transient domain (``incoming``: let it wait for a migration); it runs when this returns.

        ``Refused`` says why the hypervisor refuses, ``BadInput`` that every hypervisor would, because of the
        definition; then no process of that run exists. ``InUse`` if there is a
        domain of this VM, or one that is ``starting``. Nothing else starts the domain: neither its host nor its end.
        Its disks are opened so that nothing is written to them once its process is gone: ``Refused`` with
        ``cache_refusal`` if the VM asks for another cache.
        """
        ...

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> None:
        """Kill it (only that run, if one is named) and return once no process of it is left; no error if there was
        none.

        ``uuid``: kill instead the domain of that UUID that Outlive did not make, and nothing else: a domain with the
        name of a VM and another UUID is not Outlive's.

        A creation under way is waited for or broken off: once this returned, nothing that was asked for before
        appears any more. ``Unavailable`` also where its process does not end. Domains that the service has lost, and
        those outside the slice, are killed too.
        """
        ...

    async def decline(self, vm: str, run_id: str) -> None:
        """End the incoming domain of that run, in one step with the look whether it ever ran: afterwards it never did.

        One that has ended by itself while it waited never ran either, and that is known until the next run of its VM
        or the next boot. ``Refused`` where it has begun to run, or nothing is known of it; then nothing happened. Real
        drivers stop the process first, look at it while it cannot begin, and kill it or let it go on.
        """
        ...

    async def shutdown(self, vm: str) -> None:
        """Ask the guest to end; it may ignore that. Asking twice is as asking once."""
        ...

    async def list_devices(self, vm: str, *, run_id: str) -> Mapping[str, str]:
        """Disks and interfaces of the domain of that run as it is now: target or MAC address → id of the disk.

        The id is empty for interfaces and read-only devices. ``Refused`` if there is no such run.
        """
        ...

    async def disk_io(self) -> tuple[DiskIo, ...]:
        """Of every guest that Outlive made and that runs here, by name; each is asked by itself, with a limit.

        Requests that are pending while none is answered from one look to the next are stuck. ``Unavailable`` where the
        processes of this host cannot be read.
        """
        ...

    async def attach(self, vm: VirtualMachine, device: str, *, run_id: str) -> None:
        """Give the running domain of that run a device of its definition, by target or MAC address.

        Its guest has it when this returns; no error if it had it. ``Refused`` says why it cannot, and then it has not.
        The
        device is made as ``create`` makes it, and at the address that the definition names. After ``Unknown``, or if
        the caller is killed, the domain may have it: ``list_devices`` shows that, and the call may be repeated.
        """
        ...

    async def detach(self, vm: str, device: str, *, run_id: str) -> None:
        """Ask the guest of that run to let go of a device; it may ignore that. Asking twice is as asking once.

        ``list_devices`` shows when it has let go, and from then on nothing is written to the disk. No error if it has
        none of that name. ``Refused`` if the guest cannot be asked, for example because it was asked just now.
        """
        ...

    async def resume(self, vm: str, *, run_id: str) -> None:
        """Resume a paused or handed-over domain of that run; it runs when this returns.

        One that was paused by a disk that did not serve it sends its requests again. ``Refused`` where it is of another
        run or in another state. Nothing else ever lets a handed-over domain run:
        not the driver, not the service after a failed migration or its own restart, not the hypervisor itself.
        """
        ...

    async def migrate(self, vm: str, target: str, *, listens: str, settings: MigrationSettings) -> None:
        """Send a running domain to the incoming one on ``target``, which waits at ``listens`` (``Domain.listens``).

        Returns once all was sent; the target lets it run at that moment, unless it was declined. Both never run at the
        same time. The source pauses before the switch-over, and until the last of its state is sent the target cannot
        run: a failure until then is ``Refused``, and the domain runs on here. From then on it is ``handed-over`` after
        any failure (``Unknown`` if that is noticed), until ``resume`` or ``destroy``. If the caller is killed, the
        migration continues or is called off in the same way. One migration of a domain at a time.

        By post-copy the target runs it as soon as its state and a part of its memory are there, and this returns once
        all of it is; meanwhile both domains are ``split``, and ``resume`` of the source is ``Refused``, also where the
        connection between them has ended: then the source is ``off``. The driver ends the
        connection where nothing more arrives for ``POST_COPY_STALL_S``, also after the caller was killed.
        """
        ...

    async def cancel(self, vm: str) -> None:
        """Call off a migration that this process began: ``migrate`` is ``Refused`` then, and the domain runs on here.

        It has no effect once the last of the state is being sent. ``Refused`` where none is under way.
        """
        ...

    async def read_progress(self, vm: str) -> MigrationProgress | None:
        """How far a migration is that this process began; ``None`` where none is under way."""
        ...

    async def start_service(self) -> None:
        """Start the hypervisor service, which a guard may have stopped; no error if it runs."""
        ...
