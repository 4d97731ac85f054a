"""What the node daemon and its fencer need of the outside, one module for each port.

The docstrings are the whole promise: what holds when a call returns, after each error, and after the process that
called it was killed. Nothing else may be relied upon, and a driver is right once it passes
``tests/conformance/ports`` with faults on (docs/design/drivers.md lists the ports).

For every call, unless it says otherwise: ``Unavailable`` means that nothing happened and nothing will; ``Unknown`` that
it may have happened, or may yet. The caller sets the deadline and counts its end as ``Unknown``; a driver blocks
neither the event loop nor the end of the call, whatever it waits for. No driver repeats an order by itself. What a
process asked for goes on when it is killed, or it does not; the next process looks.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.node.ports.links import FoundCard, FoundFunction, FunctionPort
from outlive.node.ports.machine import GuardPort, GuardReport
from outlive.node.ports.hypervisor import (
    POST_COPY_STALL_S,
    DiskIo,
    Domain,
    DomainState,
    HypervisorPort,
    MigrationProgress,
    MigrationSettings,
)
from outlive.node.ports.storage import CutPort, CutReport
from outlive.node.ports.links import (
    ANNOUNCEMENT_PAUSE_S,
    ANNOUNCEMENTS,
    FoundLinks,
    HostLink,
    HostRoute,
    LinkNotes,
    LinkOp,
    LinkPort,
    LinkTraffic,
    NoLinks,
)
from outlive.node.ports.machine import MachinePort
from outlive.node.ports.links import NetworkPort, NoNetworks
from outlive.node.ports.machine import PowerPort, PowerReading, PowerRefused, PowerState
from outlive.node.ports.services import (
    DhcpPort,
    FirewallPort,
    MetadataPort,
    NamePort,
    RoleGuardPort,
    ServicePorts,
)
from outlive.node.ports.storage import (
    PLACES_LIMIT,
    REACH_S,
    DiskLock,
    StoragePort,
    StorageReport,
    StorageStatisticsPort,
)

if TYPE_CHECKING:
    from outlive.node.ports.services import AnswerCaller
else:
    __getattr__ = load_exports(__name__)

__all__ = [
    "ANNOUNCEMENTS",
    "ANNOUNCEMENT_PAUSE_S",
    "PLACES_LIMIT",
    "POST_COPY_STALL_S",
    "REACH_S",
    "CutPort",
    "CutReport",
    "DhcpPort",
    "DiskIo",
    "DiskLock",
    "Domain",
    "DomainState",
    "FirewallPort",
    "FoundCard",
    "FoundFunction",
    "FoundLinks",
    "FunctionPort",
    "GuardPort",
    "GuardReport",
    "HostLink",
    "HostRoute",
    "HypervisorPort",
    "LinkNotes",
    "LinkOp",
    "LinkPort",
    "LinkTraffic",
    "MachinePort",
    "MetadataPort",
    "MigrationProgress",
    "MigrationSettings",
    "NamePort",
    "NetworkPort",
    "NoLinks",
    "NoNetworks",
    "PowerPort",
    "PowerReading",
    "PowerRefused",
    "PowerState",
    "RoleGuardPort",
    "ServicePorts",
    "StoragePort",
    "StorageReport",
    "StorageStatisticsPort",
]
