"""This host's own devices, addresses and routes, and the virtual functions of its cards, on the kernel's netlink."""

from outlive.drivers.links.links import KernelLinks
from outlive.drivers.links.notes import LinkNotesFile

__all__ = ["KernelLinks", "LinkNotesFile"]
