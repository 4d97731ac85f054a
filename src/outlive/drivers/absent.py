"""The port of a host that has no hypervisor.

Such a host is a member and may be a coordinator; it runs no virtual machine.
"""

from __future__ import annotations

from collections.abc import Callable

from outlive.base import Refused
from outlive.node.ports import DiskIo, Domain, MigrationProgress, MigrationSettings
from outlive.node.vm import GuestCounts
from outlive.resources import VirtualMachine


class NoHypervisor:
    """Nothing is here, and nothing is taken."""

    functions: Callable[[], tuple[str, ...]] = tuple
    """Devices of this host that guests might have."""

    async def list_domains(self) -> tuple[Domain, ...]:
        """None."""
        return ()

    async def list_problems(self) -> tuple[str, ...]:
        """Nothing starts here."""
        return ()

    async def read_statistics(self) -> tuple[GuestCounts, ...]:
        """Of nobody."""
        return ()

    async def create(
        self, vm: VirtualMachine, *, run_id: str, epoch: int, incoming: MigrationSettings | None = None
    ) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm.name)

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> None:
        """There is nothing to stop."""

    async def decline(self, vm: str, run_id: str) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm)

    async def shutdown(self, vm: str) -> None:
        """There is nothing to ask."""

    async def list_devices(self, vm: str, *, run_id: str) -> dict[str, str]:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm)

    async def disk_io(self) -> tuple[DiskIo, ...]:
        """Of nobody."""
        return ()

    async def attach(self, vm: VirtualMachine, device: str, *, run_id: str) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm.name)

    async def detach(self, vm: str, device: str, *, run_id: str) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm)

    async def resume(self, vm: str, *, run_id: str) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm)

    async def migrate(self, vm: str, target: str, *, listens: str, settings: MigrationSettings) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm)

    async def cancel(self, vm: str) -> None:
        """``Refused``."""
        raise _no_hypervisor_refusal(vm)

    async def read_progress(self, vm: str) -> MigrationProgress | None:
        """There is none."""
        return None

    async def start_service(self) -> None:
        """There is none."""


def _no_hypervisor_refusal(vm: str) -> Refused:
    return Refused(f"{vm} cannot run here: this host has no hypervisor", remedy="set libvirt.uri in its node.yaml")
