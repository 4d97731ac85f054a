"""The input of a certificate, from one look at a cluster and the objects that it was taken from."""

from __future__ import annotations

from collections.abc import Sequence

from outlive.failover.certificate.certify import CertifyInput, without_room
from outlive.resources import FAILOVER, Reservation, Resource
from outlive.resources.state import state_digest
from outlive.roles.planning import Gathered


def certify_input(gathered: Gathered, objects: Sequence[Resource], *, partial: bool = False) -> CertifyInput:
    """What may be certified of exactly these objects, under the settings in force."""
    observation = gathered.observation
    slots = [view for view in observation.slots if observation.objects[view.name].spec.type == FAILOVER]
    reservations = [item for item in objects if isinstance(item, Reservation)]
    return CertifyInput(
        state_digest=state_digest(objects),
        hosts=tuple(host.name for host in observation.hosts),
        vms=observation.vms,
        required=gathered.required,
        slots=tuple(slots),
        without_room=without_room(observation.hypervisors, reservations, observation.vms),
        unit=gathered.settings.topology_choice.unit,
        topology=gathered.topology,
        partial=partial,
    )
