"""What is reported of a port: whether a target can take it over, and where it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from outlive.network.informers import PortChange, condition_of
from outlive.network.own_vms import OwnPort
from outlive.network.ports import Binding, Chassis, OvnFeatures
from outlive.network.views import VmPlace
from outlive.resources import Announcement, PortMove, VirtualMachinePort, VirtualMachinePortStatus
from outlive.resources.meta import with_condition
from outlive.resources.networks import interface_id
from outlive.resources.reasons import NetworkReason, Reason, reason, render

_replace = msgspec.structs.replace


def preparation_problem(
    own: OwnPort,
    host: str,
    chassis: str,
    known: Mapping[str, Chassis],
    binding: Binding | None,
    features: OvnFeatures,
    nb_cfg: int,
) -> Reason | None:
    """Why a host cannot take the port over yet; ``None``: it can.

    Its chassis has bound the port, and has the change ``nb_cfg``. An OVN that binds a port once lets it wait unbound.
    """
    if chassis not in known:
        return reason(NetworkReason.NO_CHASSIS, host=host)
    waits_unbound = own.mode == "shared" and not (features.chassis_list and features.strategies)
    if not waits_unbound and (binding is None or chassis not in (binding.chassis, *binding.additional_chassis)):
        return reason(NetworkReason.NOT_BOUND, host=host, port=interface_id(own.interface, own.mode, host))
    return reason(NetworkReason.FLOWS_BEHIND, host=host) if known[chassis].nb_cfg < nb_cfg else None


def unprepared_move(move: str, problem: Reason, reported: PortMove | None) -> PortMove:
    """That the target cannot take the port over; the time of a preparation before says that it could once."""
    times_ms = reported.times_ms if reported is not None and reported.id == move else {}
    return PortMove(id=move, reason=problem.code, message=render(problem).text, times_ms=times_ms)


def settled_status(
    own: OwnPort,
    place: VmPlace,
    notice: Reason | None,
    *,
    bound: bool,
    move: PortMove | None,
    announcements: tuple[Announcement, ...] | None,
    at: datetime,
) -> PortChange:
    """From the status of a port that OVN has to what it is now.

    ``notice``: what is wrong with its network, mode or addresses all the same. ``announcements``: ``None`` leaves those
    of before.
    """
    interfaces = {host: interface_id(own.interface, own.mode, host) for host in (place.host, place.target) if host}
    unbound = None if bound else reason(NetworkReason.NOT_BOUND, host=place.host, port=interfaces[place.host])

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        conditions = now.conditions
        for kind, problem in (("Programmed", None), ("Bound", unbound), ("AddressesReserved", notice)):
            conditions = with_condition(conditions, condition_of(kind, problem, at))
        switched = now.active_on not in ("", place.host)
        return _replace(
            now,
            network=own.network.name,
            port_mode=own.mode,
            interfaces=interfaces,
            active_on=place.host,
            switched_at=at if switched else now.switched_at,
            migration=_without_note(move or now.migration),
            announcements=announcements if switched and announcements is not None else now.announcements,
            conditions=conditions,
        )

    return change


def noted_move(place: VmPlace, incarnation: str) -> PortChange:
    """From the status of a port to one that says where its VM moves to in this incarnation of the store."""

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        is_same = now.migration is not None and now.migration.id == place.move
        move = now.migration if is_same and now.migration is not None else PortMove(id=place.move)
        return _replace(now, migration=_replace(move, target=place.target, incarnation=incarnation))

    return change


def is_noted_arrival(port: VirtualMachinePort | None, host: str, incarnation: str) -> bool:
    """True if a move to that host was noted in this incarnation of the store.

    A VM that is on that host now, without a move, has arrived: only the target writes that, which then has the guest.
    """
    move = port.status.migration if port is not None else None
    return move is not None and incarnation != "" and (move.target, move.incarnation) == (host, incarnation)


def _without_note(move: PortMove | None) -> PortMove | None:
    """The move without what was noted of it during a pause."""
    return _replace(move, target="", incarnation="") if move is not None else None


def refused_status(problem: Reason, place: VmPlace, at: datetime) -> PortChange:
    """From the status of a port to one that says why OVN does not have it, and has its VM's move wait."""

    def change(now: VirtualMachinePortStatus) -> VirtualMachinePortStatus:
        conditions = with_condition(now.conditions, condition_of("Programmed", problem, at))
        move = unprepared_move(place.move, problem, now.migration) if place.move else None
        return _replace(now, migration=_without_note(move or now.migration), conditions=conditions)

    return change
