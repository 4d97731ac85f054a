"""Where addresses of hosts' own networks really are: none is on two hosts, or on none, for longer than is promised.

An address that only the primary has is on two hosts while it goes from one to the other. While nothing else goes wrong
that is a moment; a leaver that has given the role back and stalls loses it to its guard, and so does a holder that has
lost the role. It is on no host from when a holder fails until another one has won the election, where the store answers
and one coordinator is fit for the role all that time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from outlive.base import join_parts
from outlive.node import GUARD_S, HOLDER_S, MARGIN_S, ROLE
from outlive.node.services import METADATA_ADDRESS, lease_name
from outlive.resources import DhcpLease, Election, Hypervisor, VirtualNetwork, bridge_name
from outlive.runtime import BELIEF, RENEW_S, SILENCE_S
from outlive.simulation.history import HistoryEvent
from outlive.simulation.networks import Segment
from outlive.simulation.stores import QUIET

if TYPE_CHECKING:
    from outlive.simulation.links.processes import OwnNetworks
    from outlive.simulation.world import World

Place = tuple[str, str]
"""Device, and address with its length."""
SMOOTH_S: Final = 1.0
"""An address may be on two hosts for so long where both daemons work and the store answers them."""
SLACK_S: Final = 1.0
"""So much later than promised everything may come."""
GIVEN_BACK_S: Final = GUARD_S + SLACK_S
"""The same where the leaver has given the role back and stalls: then its guard takes the address away."""
LOST_S: Final = BELIEF * SILENCE_S + MARGIN_S + SLACK_S
"""The same where the role was taken from a holder that stalls: it does not believe in it for longer."""
ABSENT_S: Final = max(SILENCE_S + RENEW_S, HOLDER_S) + 3.0
"""An address may be on no host for so long: the silence of an election, or until a leaver is waited for no more."""
UNCLAIMED_S: Final = SILENCE_S + RENEW_S + HOLDER_S + 3.0
"""The same where the leaver fails after it gave the role back, before anybody has it: both are waited for."""
STORED_S: Final = 20.0
"""So long after a guest was given an address the store knows it, where it answers."""
JUDGED_EVERY_S: Final = 0.25


@dataclass(slots=True)
class Presence:
    """Where one address is, and has been."""

    hosts: tuple[str, ...] = ()
    since_s: float = 0.0
    smooth: bool = True
    """Whether nothing else has gone wrong since."""
    given_back: bool = False
    """Whether one of these hosts is the leaver of a hand-over."""
    unclaimed: bool = False
    """Whether a hand-over was on its way and nobody had the role while it was on no host."""
    longest_twice_s: float = 0.0
    """So long it was on two hosts at most."""
    longest_absent_s: float = 0.0
    """So long it was on none at most, once it had been on one."""
    was_there: bool = False
    """Whether it ever was on one."""


class AddressJudge:
    """See the module."""

    def __init__(self, world: World, own: OwnNetworks) -> None:
        self._world = world
        self._own = own
        self._found: dict[Place, Presence] = {}
        self._calm_since_s = 0.0
        """Since when the same coordinators are fit for the role."""
        self._circumstances: tuple[object, ...] = ()

    def find_presence(self, address: str) -> Presence | None:
        """Where an address is; ``None``: it never was anywhere."""
        return next((found for (_, one), found in self._found.items() if one.partition("/")[0] == address), None)

    def note_change(self) -> None:
        """An address may have come or gone: note where all are now."""
        now_s = self._world.clock.monotonic()
        there: dict[Place, list[str]] = {}
        for name, host in self._world.hosts.items():
            if host.lives and not host.paused:  # others answer nothing
                for place in self._own.kernels[name].places:
                    there.setdefault(place, []).append(name)
        for place in {**dict.fromkeys(self._list_role_places()), **self._found, **there}:
            found, hosts = self._found.setdefault(place, Presence(since_s=now_s)), tuple(there.get(place, ()))
            if hosts == found.hosts:
                continue
            self._note_circumstances(now_s)
            self._judge(place, found, now_s)
            self._note_lengths(found, now_s)
            found.hosts, found.since_s = hosts, now_s
            found.smooth, found.given_back, found.unclaimed = True, False, False
            found.was_there = found.was_there or bool(hosts)
            self._tell(place, hosts)

    def judge(self) -> None:
        """Nothing may have changed, and time has passed."""
        now_s, wanted = self._world.clock.monotonic(), self._list_role_places()
        self._note_circumstances(now_s)
        for place, found in self._found.items():
            if len(found.hosts) > 1 or (not found.hosts and place in wanted):
                self._judge(place, found, now_s)
                self._note_lengths(found, now_s)

    def judge_rest(self) -> Iterator[tuple[str, str]]:
        """Guests with an address that somebody else has as well, or that the store does not know though who gave it is
        the primary still."""
        now_s, election = self._world.clock.monotonic(), self._world.store.find(Election, ROLE)
        for network in self._own.managed:
            owners: dict[str, str] = {}
            for given in self._own.used_addresses(network.name):
                other = owners.setdefault(given.address, given.mac)
                if other != given.mac:
                    yield given.mac, f"{given.mac} and {other} have {given.address} on {network.name}"
                late = now_s - max(given.at_s, self._calm_since_s) > STORED_S
                if not late or election is None or election.record.holder != given.host or not self._is_fit():
                    continue
                lease = self._world.store.find(DhcpLease, lease_name(network.name, given.address))
                if lease is None or lease.mac != given.mac:
                    stored = "nothing" if lease is None else lease.mac
                    yield given.mac, f"{given.mac} has {given.address} on {network.name}, and the store knows {stored}"

    def _note_lengths(self, found: Presence, now_s: float) -> None:
        if len(found.hosts) > 1:
            found.longest_twice_s = max(found.longest_twice_s, now_s - found.since_s)
        elif not found.hosts and found.was_there:
            found.longest_absent_s = max(found.longest_absent_s, now_s - found.since_s)

    def _judge(self, place: Place, found: Presence, now_s: float) -> None:
        """Report it where it is on two hosts, or on none, for too long by now."""
        device, address = place
        if len(found.hosts) > 1:
            limit_s = self._limit_s(found)
            if now_s - found.since_s > limit_s:
                text = f"{address} on {device} is on {join_parts(found.hosts)} for more than {limit_s:.1f} s"
                self._world.judge.judge_address(address, text)
        elif not found.hosts and place in self._list_role_places():
            election = self._world.store.find(Election, ROLE)
            if election is not None and election.record.handover is not None and not election.record.holder:
                found.unclaimed = True
            limit_s = (UNCLAIMED_S if found.unclaimed else ABSENT_S) / self._slowest_rate()
            if self._is_fit() and now_s - max(found.since_s, self._calm_since_s) > limit_s:
                self._world.judge.judge_address(address, f"{address} is on no host for more than {limit_s:.1f} s")

    def _limit_s(self, found: Presence) -> float:
        election = self._world.store.find(Election, ROLE)
        handover = election.record.handover if election is not None else None
        if handover is not None and handover.leaver in found.hosts and not handover.overtaken:
            found.given_back = True
        found.smooth = found.smooth and self._store_answers() and all(map(self._is_working, found.hosts))
        if found.smooth:
            return SMOOTH_S
        return (GIVEN_BACK_S if found.given_back else LOST_S) / self._slowest_rate()

    # What is so

    def _list_role_places(self) -> tuple[Place, ...]:
        """What only the primary has."""
        spec = self._world.spec
        if not spec.primary_role:
            return ()
        found = []
        for name, network in spec.system_networks.items():
            length = ipaddress.ip_network(network.cidr).prefixlen
            found.append((f"br{name}", f"{network.floating}/{length}"))
        managed = [one for one in self._own.managed if self._world.store.find(VirtualNetwork, one.name) is not None]
        for one in managed:
            for subnet in one.subnets:
                length = ipaddress.ip_network(subnet.cidr).prefixlen
                found.append((bridge_name(one.vni), f"{subnet.gateway}/{length}"))
        return (*found, *([("lo", f"{METADATA_ADDRESS}/32")] if managed else []))

    def _store_answers(self) -> bool:
        world = self._world
        undisturbed = world.ensemble is None or world.ensemble.undisturbed
        return undisturbed and not (world.store_down or world.slow or world.store.failing) and world.rates == QUIET

    def _is_working(self, name: str) -> bool:
        """Whether the daemon of that host runs, and reaches the store and its own kernel."""
        host, networks = self._world.hosts[name], self._world.networks
        return (
            host.lives
            and not host.paused
            and host.daemon.active
            and host.daemon.wanted
            and self._own.kernels[name].answers.is_set()
            and networks.can_send(Segment.STORE, name)
            and networks.can_receive(Segment.STORE, name)
        )

    def _can_hold_role(self, name: str) -> bool:
        """Whether that coordinator may have the role, and make its addresses."""
        member, found = self._world.store.find_member_record(name), self._world.store.find(Hypervisor, name)
        is_member = member is not None and member.state == "Held"
        is_coordinator = found is not None and found.spec.mode == "coordinator"
        links = {link.name for link in self._own.kernels[name].read(()).links}
        return (
            is_member
            and is_coordinator
            and self._is_working(name)
            and all(place[0] in links for place in self._list_role_places())
        )

    def _coordinator_names(self) -> list[str]:
        return [name for name, host in self._world.hosts.items() if host.spec.mode == "coordinator"]

    def _is_fit(self) -> bool:
        """Whether some coordinator is, and none has the role and cannot reach its kernel."""
        stuck = any(
            host.lives and not self._own.kernels[name].answers.is_set() for name, host in self._world.hosts.items()
        )
        return not stuck and self._store_answers() and any(map(self._can_hold_role, self._coordinator_names()))

    def _note_circumstances(self, now_s: float) -> None:
        """All on which it depends who can be the primary; while it stays the same, an election ends."""
        hosts = self._world.hosts
        runs = tuple(
            (hosts[name].daemon.runs, self._is_working(name), self._can_hold_role(name))
            for name in self._coordinator_names()
        )
        found = (self._world.store.incarnation, self._store_answers(), self._is_fit(), runs, self._list_role_places())
        if found != self._circumstances:
            self._circumstances, self._calm_since_s = found, now_s

    def _slowest_rate(self) -> float:
        """How fast the slowest clock of a coordinator runs."""
        return min((self._world.hosts[name].machine.clock.pace for name in self._coordinator_names()), default=1.0)

    def _tell(self, place: Place, hosts: tuple[str, ...]) -> None:
        if place not in self._list_role_places():
            return
        address = place[1].partition("/")[0]
        text = f"{address} is on {join_parts(hosts)}" if hosts else f"{address} is on no host"
        where = join_parts(hosts) if hosts else "no host"
        self._world.history.record(
            HistoryEvent(
                kind="address",
                subject=address,
                text=text,
                also=hosts,
                loud=True,
                key=f"address {where}",
                many=f"{{n}} addresses are on {where}",
            )
        )
