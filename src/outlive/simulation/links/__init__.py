"""What hosts make of their own networks: devices, addresses of the primary and who takes them back, DHCP."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.simulation.links.role_guards import SimRoleGuard
else:
    __getattr__ = load_exports(__name__)
