"""Settings of the connection with an OpenStack, section ``openstack`` (docs/operating/openstack.md)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from outlive.runtime.units import Duration

OVERLAP_LIMIT_S: Final = 3600.0
"""The longest ``overlap``."""


class OpenStackSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How an OpenStack is reached, and what is taken from it. Without ``cloud`` nothing is."""

    cloud: str = ""
    """Name of an entry of the clouds file; empty: there is no OpenStack."""
    clouds_file: str = "/etc/openstack/clouds.yaml"
    """The file; nobody but us may read it where it holds a password."""
    secret: str = ""
    """Name of the ``Secret`` with our user name and password, or the id and secret of an application credential; empty:
    they are in the file."""
    region: str = ""
    """Another region than the entry's."""
    interface: Literal["public", "internal", "admin"] = "public"
    """Which endpoints of the catalogue are used; Limes is always asked at its public one."""
    inventory: bool = True
    """Keep hosts, VMs and flavors as Nova has them."""
    commitments: bool = False
    """Keep commitments as Limes has them."""
    poll_interval: Duration = Duration(10.0)
    """How often Nova is asked what has changed."""
    full_interval: Duration = Duration(600.0)
    """How often everything is read anew."""
    overlap: Duration = Duration(60.0)
    """By how much each question about changes goes back further than the one before."""
    stale_after: Duration = Duration(120.0)
    """How old what is known of Nova may become before a fault says so."""
    request_limit: Duration = Duration(30.0)
    """How long one request may take, a login included."""
    page_size: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    """Servers, hypervisors or flavors that are asked for at once; Nova may give fewer."""
    project_pause: Duration = Duration(0.05)
    """Time between the starts of two requests to Limes, more or less half of it."""
    project_requests: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    """Requests to Limes at the same time."""

    def __post_init__(self) -> None:
        for name in ("poll_interval", "full_interval", "stale_after", "request_limit"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is 0; write a duration that is more than nothing")
        if self.full_interval < self.poll_interval:
            raise ValueError(f"fullInterval {self.full_interval} is less than pollInterval {self.poll_interval}")
        if self.stale_after < self.poll_interval:
            raise ValueError(f"staleAfter {self.stale_after} is less than pollInterval {self.poll_interval}")
        if self.overlap > OVERLAP_LIMIT_S:
            raise ValueError(f"overlap is {self.overlap}; write at most {Duration(OVERLAP_LIMIT_S)}")
