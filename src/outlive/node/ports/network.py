"""The networks of virtual machines, as far as a controller outside of the host programs them."""

from __future__ import annotations

from typing import Protocol

from outlive.resources import VirtualMachine


class NetworkPort(Protocol):
    """One host's side of networks that somebody else programs, such as OVN's.

    The host never programs a network: it plugs interfaces in, looks whether they work here, and tells guests what
    changed around them. What is to be where, the network controller reads from the virtual machine and its migration.
    """

    @property
    def prepare_limit_s(self) -> float:
        """How long a migration waits until the network is prepared; then it is aborted."""
        ...

    async def find_chassis(self) -> str | None:
        """The name of this host in OVN; empty: it runs none; ``None``: its switch does not say now."""
        ...

    async def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """The VM as this host is to create it: each interface with the id that it has on this host.

        The same VM where nobody programs its networks. ``Unavailable`` where that is not known: then it is not created.
        """
        ...

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """Why this host cannot take over the VM's ports in that migration yet; empty: it can.

        It can once the controller has reported for each port that the target's logical port is bound and has its flows,
        and this host's own switch says so as well. Asked after the domain that listens was created, again and again.
        ``Unavailable`` where that is not known.
        """
        ...

    def announce(self, vm: str) -> None:
        """The VM runs here now: send its guests and neighbours what the controller wants announced, in the background.

        Also asked of the host that it has left, for guests there that have talked to it.
        """
        ...


class NoNetworks(NetworkPort):
    """Nobody programs networks: interfaces are as definitions say, and every host can take over every port."""

    prepare_limit_s = 0.0

    async def find_chassis(self) -> str | None:
        """None is needed."""
        return ""

    async def plug(self, vm: VirtualMachine) -> VirtualMachine:
        """The same."""
        return vm

    async def prepare(self, vm: VirtualMachine, move: str) -> str:
        """Always."""
        return ""

    def announce(self, vm: str) -> None:
        """There is nothing to announce."""
