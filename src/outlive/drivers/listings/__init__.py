"""Inventories from what other systems print: Proxmox VE, libvirt, RVTools (of VMware), KubeVirt, Ganeti.

Each reader turns files into records, and judges only what its format says: what makes no record is a problem with its
place. Everything after that is the same for all importers (``outlive.inventory.check``).
"""

from outlive.drivers.listings.ganeti import read_ganeti
from outlive.drivers.listings.kubevirt import read_kubevirt
from outlive.drivers.listings.libvirt_dumps import read_libvirt
from outlive.drivers.listings.proxmox import read_proxmox
from outlive.drivers.listings.rvtools import read_rvtools

__all__ = ["read_ganeti", "read_kubevirt", "read_libvirt", "read_proxmox", "read_rvtools"]
