"""The hypervisor of one host by libvirt and QEMU: ``HypervisorPort`` (docs/reference/hypervisor.md).

libvirt makes and lists domains; who is really there is read from the processes themselves, and what a guest is doing is
asked of its QEMU where libvirt cannot know. Modules: ``threads`` (for calls that may hang), ``service`` (calls of
libvirt in them, each with a deadline), ``xml``, ``runs`` (what was asked for, on disk), ``processes``, ``qmp``,
``migration``, ``statistics``, ``consoles`` (logs of serial ports), and ``hypervisor`` (the port).
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.drivers.libvirt.consoles import ConsoleFiles, console_path, make_log, read_end
    from outlive.drivers.libvirt.devices import Devices
    from outlive.drivers.libvirt.disk_io import DiskWatch
    from outlive.drivers.libvirt.hypervisor import GUESTS_SERVICE, LibvirtHypervisor, starts_guests
    from outlive.drivers.libvirt.migration import Pace, has_connection
    from outlive.drivers.libvirt.places import check_paths
    from outlive.drivers.libvirt.processes import MARK, GuestProcess, Processes, Scans, format_mark, kill, receives
    from outlive.drivers.libvirt.qmp import Qmp
    from outlive.drivers.libvirt.runs import POST_COPY, DomainRun, Runs, Sending
    from outlive.drivers.libvirt.service import LibvirtService
    from outlive.drivers.libvirt.settings import LibvirtSettings, unreachable_reason
    from outlive.drivers.libvirt.statistics import parse_counts
    from outlive.drivers.libvirt.threads import DiskThread
    from outlive.drivers.libvirt.xml import METADATA, QEMU, Start, domain_xml
else:
    __getattr__ = load_exports(__name__)
