"""This host's own devices, addresses and routes: ``node.ports.LinkPort`` on the kernel's netlink."""

from outlive.drivers.links.links import KernelLinks
from outlive.drivers.links.notes import LinkNotesFile

__all__ = ["KernelLinks", "LinkNotesFile"]
