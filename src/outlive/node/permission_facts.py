"""Who writes as a host, and what has to be known to judge a write (``outlive.node.permissions``)."""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.membership.states import MemberView
from outlive.resources import Cluster, VirtualMachine
from outlive.resources.writers import CANDIDATE, DAEMON, FENCER, PRIMARY


class HostWriter(msgspec.Struct, frozen=True):
    """A host that writes."""

    host: str
    coordinator: bool = False
    machine_id: str = ""
    """Of the machine that may use this name; empty: any."""
    term: int = 0
    """In which it is the primary coordinator; 0: it is not."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which it writes."""
        fencer = FENCER + CANDIDATE if self.coordinator else ()
        return DAEMON + fencer + (PRIMARY if self.term else ())

    @property
    def decider(self) -> str:
        """Who decided, in its records of decisions."""
        return f"node {self.host}"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says besides the object that is written, read after ``before`` or earlier (``needed_facts``)."""

    members: tuple[MemberView, ...] = ()
    vm: VirtualMachine | None = None
    """Whose console or fault is written."""
    cluster: Cluster | None = None
    hosts: tuple[str, ...] = ()
    """All hosts that have a daemon of ours."""


class NeededFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be read to judge one write."""

    members: tuple[str, ...] = ()
    """Hosts whose Memberships are needed."""
    vm: str = ""
    cluster: bool = False
    every_host: bool = False
    """All Memberships and all hosts."""
    term: bool = False
    """Whether only the primary coordinator writes it."""


NO_FACTS: Final = Facts()
