"""Asking placement for a whole cycle: each question once per class of equal VMs, a few at a time.

The answers of one cycle are of one moment more or less; what the cycle itself adds is deducted by the assignment, which
keeps its own account of free space. That account covers this process only: of two processes that place at the same time
the second may find its slot's host too full, which validation discovers
(docs/reference/failover-operation.md#placement-calls).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from outlive.base import OutliveError, get_logger
from outlive.failover.calls import Call, Caller, NoCandidates, common_host, placement_class, write_candidates
from outlive.failover.fleet import FreeAmounts
from outlive.failover.planner.actions import Claim, Need, PlacementOffer
from outlive.failover.ports import PlacementPort
from outlive.failover.slots import ResolvedSize
from outlive.placement import Fleet, Intent, PlacementRequest, Ranking, VmView
from outlive.resources import encode_canonical
from outlive.runtime import OrderedTaskGroup

CALLS_AT_ONCE = 4
"""Placement calls of one cycle that are under way at the same time."""

STRANGERS_SHOWN = 5
"""Hosts of an answer that nobody asked about, named in the log."""

_log = get_logger("failover.placing")


class Ranker(Protocol):
    """The placement service of this process."""

    async def rank(self, request: PlacementRequest, *, why: bool = False) -> Ranking:
        """The hosts, best first."""
        ...


class InProcessPlacement:
    """Placement without a detour over HTTP."""

    needs_candidates = False

    def __init__(self, ranker: Ranker, fleet: Fleet) -> None:
        self._ranker = ranker
        self._fleet = fleet

    async def offer(self, call: Call) -> PlacementOffer:
        """The hosts with their scores, and how many hosts each step refused."""
        if call.request.hosts is None and not any(name not in call.request.ignore_hosts for name in self._fleet):
            write_candidates(call, ())
        ranking = await self._ranker.rank(call.request)
        return offer_of(ranking)

    def equivalence_key(self, call: Call) -> Hashable | None:
        """What the answer rests on, where it is about one host."""
        return equivalence_key(self._fleet, call.request)


class WithCandidates:
    """Names the candidates in calls that mean all hosts, for a scheduler that knows no others, and says how their
    source calls them."""

    needs_candidates = False

    def __init__(self, port: PlacementPort, fleet: Fleet) -> None:
        self._port = port
        self._fleet = fleet

    async def offer(self, call: Call) -> PlacementOffer:
        """The answer to the call with its candidates; ``Refused`` where there are none.

        Of a search only hosts that were named are believed: a slot on any other would hold nothing that we know of.
        """
        named = write_candidates(call, self._fleet.names)
        hosts = filter(None, map(self._fleet.find_host, self._fleet))
        renamed = {host.name: host.status.source_name for host in hosts if host.status.source_name}
        request = msgspec.structs.replace(named.request, renamed_hosts=renamed)
        named = msgspec.structs.replace(named, request=request)
        offer = await self._port.offer(named)
        if call.request.hosts is not None:
            return offer
        candidates = frozenset(named.request.hosts or ())
        strangers = [host for host in offer.hosts if host not in candidates]
        if not strangers:
            return offer
        _log.warning("placement.strangers", hosts=strangers[:STRANGERS_SHOWN], number=len(strangers))
        kept = [place for place, host in enumerate(offer.hosts) if host in candidates]
        return msgspec.structs.replace(
            offer,
            hosts=tuple(offer.hosts[place] for place in kept),
            scores=tuple(offer.scores[place] for place in kept) if offer.scores else (),
        )

    def equivalence_key(self, call: Call) -> Hashable | None:
        """As the scheduler has it."""
        return self._port.equivalence_key(call)


def offer_of(ranking: Ranking) -> PlacementOffer:
    """A ranking as the assignment takes it."""
    refused = {trace.name: trace.removed for trace in ranking.traces if trace.removed}
    return PlacementOffer(hosts=ranking.hosts, scores=ranking.scores, rejected=refused)


def free_capacity(fleet: Fleet) -> dict[str, tuple[int, int]]:
    """``free_amounts`` as a table: host → free milli-cores and bytes."""
    return free_amounts(fleet).to_table()


def free_amounts(fleet: Fleet) -> FreeAmounts:
    """Free milli-cores and bytes of each host after VMs and all reservations.

    A host with a missing or negative figure has nothing free.
    """
    left, names = fleet.free_amounts(), fleet.names
    return FreeAmounts(names, np.maximum(left, 0))


def claim_of(
    vm: VmView, needed: int, size: ResolvedSize, *, with_project: bool, domain: str = "", places: tuple[str, ...] = ()
) -> Claim:
    """What one VM misses, with the class of its offers."""
    offer_class = placement_class(vm, size, with_project=with_project, domain=domain, places=places)
    return Claim(vm=vm, need=Need(vm=vm.id, needed=needed, size=size, offer_class=offer_class))


class Offers(msgspec.Struct, frozen=True, kw_only=True):
    """Class → what placement answered, for both searches."""

    reuse: dict[str, PlacementOffer]
    new: dict[str, PlacementOffer]


async def gather_offers(
    port: PlacementPort,
    caller: Caller,
    missing: Sequence[Claim],
    *,
    requests: Mapping[str, str],
    request_id: str,
    with_new: bool = True,
) -> Offers:
    """Ask both questions (or only about reuse) for every class; a call that fails is an ``PlacementOffer`` with its
    error.

    Where there is nobody to ask about, nobody is offered: that is an answer, and asking again would not change it.
    ``requests`` has the request id of each VM; a class is asked for under that of its first VM.
    """
    classes: dict[str, list[Claim]] = {}
    for one in missing:
        classes.setdefault(one.need.offer_class, []).append(one)
    limit = asyncio.Semaphore(CALLS_AT_ONCE)
    reuse: dict[str, PlacementOffer] = {}
    new: dict[str, PlacementOffer] = {}

    async def ask(
        answers: dict[str, PlacementOffer], key: str, build: Callable[..., Call], members: list[Claim]
    ) -> None:
        first = members[0]
        ignore = common_host([member.vm for member in members])
        call = build(first.vm, first.need.size, ignore=ignore, req=requests.get(first.vm.id, ""), greq=request_id)
        async with limit:
            try:
                answers[key] = await port.offer(call)
            except NoCandidates:
                answers[key] = PlacementOffer()
            except OutliveError as error:
                _log.warning("placement.failed", kind=call.kind.value, vm=call.request.resource_id, error=str(error))
                answers[key] = PlacementOffer(error=str(error))

    async with OrderedTaskGroup() as group:
        for key, members in classes.items():
            group.create_task(ask(reuse, key, caller.build_reuse_call, members), name=f"reuse {key}")
            if with_new:
                group.create_task(ask(new, key, caller.build_new_call, members), name=f"new {key}")
    return Offers(reuse=dict(sorted(reuse.items())), new=dict(sorted(new.items())))


# Questions with one answer


def equivalence_key(fleet: Fleet, request: PlacementRequest) -> Hashable | None:
    """A key: requests with the same one have the same answer at the same moment. ``None``: none is like this one.

    An answer about one host rests on the request, on what is known of the host, and on what gives way to the asking VM
    there. Where more than one host may be answered, ties between them are told apart by who asks.
    """
    hosts = request.hosts or ()
    if len(hosts) != 1 or request.intent is not Intent.EVACUATE or not request.options.read_only:
        return None
    if request.group is not None:
        return None  # a host that runs the VM itself is judged by other rules
    anybodys = msgspec.structs.replace(
        request,
        resource_id="",
        request_id="",
        global_request_id="",
        ignore_hosts=tuple(host for host in request.ignore_hosts if host in hosts),
    )
    # Reservations that hold something on the host and give way to this VM.
    row, vm = fleet.find_row(hosts[0]), request.resource_id
    found: list[str] = []
    for bucket in (fleet.ledger.slots_of_vm.get(vm), fleet.ledger.in_flight_of_vm.get(vm)):
        if bucket is not None:
            found += [name for name, entry in bucket.entries.items() if row in entry.rows]
    return encode_canonical(anybodys), tuple(sorted(found))
