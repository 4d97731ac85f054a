"""Why a VM whose host died is held, and by what it is held up."""

from __future__ import annotations

import enum
from typing import Final

from outlive.resources.reasons.model import Table, Template


class HoldReason(enum.StrEnum):
    """Why recovery does not start a VM now."""

    MEMBERSHIP_MISSING = "membership-missing"
    FENCE_UNCONFIRMED = "fence-unconfirmed"


TABLE: Final[Table] = {
    HoldReason.MEMBERSHIP_MISSING: Template(
        "{host} may still run it, and Membership/{host} does not exist or belongs to another machine",
        "restore Membership/{host}; or, once you know that the machine that ran it is off or empty: "
        'outlive fence {host} --confirm-off --membership {uid} --reason "..."',
    ),
    HoldReason.FENCE_UNCONFIRMED: Template(
        "{host} is condemned, and there is no proof yet that it is off",
        'outlive fence {host} --confirm-off --reason "..." once you know that it is off',
    ),
}
