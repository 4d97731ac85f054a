"""This host's own devices, addresses and routes: ``node.ports.LinkPort`` on the kernel's netlink."""

from outlive.drivers.links.links import KernelLinks

__all__ = ["KernelLinks"]
