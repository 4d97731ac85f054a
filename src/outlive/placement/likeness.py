"""Which questions about one host must have the same answer, whoever asks, so that it is worked out once for all.

An answer rests on the request, on what is known of the host, and on what gives way to the asking VM there. Where more
than one host may be answered, ties between them are told apart by who asks, and no two questions are alike.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from outlive.placement.fleet import Fleet
from outlive.placement.request import Intent, PlacementRequest
from outlive.resources.codec import encode_canonical


def likeness(fleet: Fleet, request: PlacementRequest) -> Hashable | None:
    """A key: requests with the same one have the same answer at the same moment. ``None``: none is like this one."""
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
    return encode_canonical(anybodys), _giving_way(fleet, request.resource_id, hosts[0])


def _giving_way(fleet: Fleet, vm: str, host: str) -> tuple[str, ...]:
    """Reservations that hold something on the host and give way to this VM."""
    row = fleet.row(host)
    found: list[str] = []
    for bucket in (fleet.ledger.slots_of_vm.get(vm), fleet.ledger.in_flight_of_vm.get(vm)):
        if bucket is not None:
            found += [name for name, entry in bucket.entries.items() if row in entry.rows]
    return tuple(sorted(found))
