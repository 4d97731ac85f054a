"""This host's own devices, addresses and routes, and the virtual functions of its cards, on the kernel's netlink."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.drivers.links.links import KernelLinks
from outlive.drivers.links.notes import LinkNotesFile

if TYPE_CHECKING:
    from outlive.drivers.links.functions import CardFunctions
    from outlive.drivers.links.netlink import Netlink
else:
    __getattr__ = load_exports(__name__)

__all__ = ["KernelLinks", "LinkNotesFile"]
