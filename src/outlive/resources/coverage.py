"""Whether a VM has the slots that it needs, and what becomes of it when its host dies."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import ClassVar

from outlive.resources.amounts import Amounts
from outlive.resources.meta import KindInfo, Part, Resource, Writers


class CoveredBy(enum.StrEnum):
    """What becomes of a covered VM when its host dies."""

    RESERVED = "reserved"
    """Its slots are kept free; Outlive neither fences its host nor restarts the VM: the system that manages it does."""
    RECOVERABLE = "recoverable"
    """Outlive proves the host dead and restarts the VM in a slot."""
    UNPROVEN = "unproven"
    """As ``recoverable``, but nothing is ready that would prove its host dead: neither a BMC that was rehearsed nor an
    armed guard. The VM would wait until a person says that the host is off."""

    @property
    def text(self) -> str:
        """The same in words."""
        return {
            CoveredBy.RESERVED: "reserved only",
            CoveredBy.RECOVERABLE: "reserved and recoverable",
            CoveredBy.UNPROVEN: "recoverable, but its host cannot be proven dead",
        }[self]


class CoverageStatus(Part, frozen=True, kw_only=True):
    """Whether a VM has its slots, as the failover controller last saw it."""

    display_name: str = ""
    """Display name of the VM; empty: none."""
    required: int
    """How many slots the VM needs; 0: it is not protected."""
    slots: tuple[str, ...] = ()
    """Names of the slots that count, in name order."""
    covered: bool
    """Whether it has as many slots as it needs."""
    covered_by: CoveredBy | None = None
    """How a covered VM is covered, as of ``changedAt`` (docs/concepts/coverage.md#covered-by-what)."""
    reason: str = ""
    """Why it is not covered: a code, then values in ``message``."""
    message: str = ""
    """Why it is not covered, in words for people."""
    remedy: str = ""
    """What helps; empty: nothing has to be done."""
    host: str = ""
    """The host of the VM as failover knows it; empty: none."""
    also_needs: Amounts = Amounts()
    """Needs besides cpu and memory, which no slot reserves."""
    changed_at: datetime | None = None
    """When this was last another one."""


class Coverage(Resource, frozen=True, kw_only=True, tag="Coverage"):
    """``Coverage/<vm>``: whether the VM has all the slots it needs. One document, written by failover alone."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="coverages",
        halves=False,
        writers=Writers(
            fields={"status": ("failover",)},
            creates=("failover",),
            deletes=("failover",),
            labels="refused",
        ),
        display=".status.displayName",
        columns=(
            ("Covered", ".status.covered", 0),
            ("By", ".status.coveredBy", 0),
            ("Required", ".status.required", 0),
            ("Slots", ".status.slots", 0),
            ("Reason", ".status.reason", 0),
            ("Host", ".status.host", 1),
            ("Remedy", ".status.remedy", 1),
        ),
    )

    status: CoverageStatus
