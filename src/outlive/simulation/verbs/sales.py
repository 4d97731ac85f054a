"""What customers do: commit to capacity, and start VMs where placement lets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from outlive.base.errors import OutliveError, Refused, Unavailable
from outlive.commitments.settings import GENERAL_PIPELINE
from outlive.placement.request import Intent, PlacementRequest, image_properties
from outlive.simulation.limes import Wanted
from outlive.simulation.process import go
from outlive.simulation.setup import vm_of
from outlive.simulation.spec import VmSpec
from outlive.simulation.verbs.operations import enter_vm
from outlive.simulation.verbs.table import Name, verb

if TYPE_CHECKING:
    from outlive.simulation.world import World

ANSWER_S: Final = 10.0
"""How long somebody waits for a host."""


@verb("change-commitments", "Limes asks for changes: {details}")
def _change_commitments(
    world: World, commitments: Annotated[tuple[Wanted, ...], Meta(min_length=1)], zone: Name = "a"
) -> None:
    world.limes.send(zone, commitments)


@verb("place-vm", "somebody starts {vms} where placement says")
def _place_vm(world: World, vm: Name, flavor: Name, project: Name, zone: Name = "a") -> None:
    """Asks the controller that leads; nothing happens where none answers or no host has room."""
    go(_placed(world, VmSpec(name=vm, host="", flavor=flavor, project=project, zone=zone)), name=f"{vm} is placed")


async def _placed(world: World, vm: VmSpec) -> None:
    service, made = world.leading(), vm_of(vm, world.spec)
    request = PlacementRequest(
        resource_id=vm.name,
        project=vm.project,
        zone=vm.zone,
        need=made.spec.resources,
        flavor_name=vm.flavor,
        extra_specs=made.spec.extra_specs,
        image_properties=image_properties("QEMU"),
        intent=Intent.CREATE,
        pipeline=GENERAL_PIPELINE,
    )
    try:
        if service is None:
            raise Unavailable("no controller leads")
        ranking = await service.ask(
            lambda role: role.role.placement.rank(request),  # type: ignore[attr-defined]
            name=f"{vm.name} is placed",
            limit_s=ANSWER_S,
        )
        if ranking.target is None:
            raise Refused("no host has room for it")
        await enter_vm(world, replace(vm, host=ranking.target))
    except OutliveError as error:
        world.history.add("fault", vm.name, f"{vm.name} is not placed: {error.message}", loud=True)
