"""Whatever happens to the pods of VMs, and in whichever order: no two places answer for one VM, and none is lost."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.loops import run
from tests.support.pod_worlds import NODES, PodWorld, Zone, entry_of

from outlive.network import DHCP, PORTS, ROUTES, find_conflicts

VMS = ("cart", "till")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("start", "ready", "arrive", "complete", "remove", "kill", "restart", "wait")),
        st.sampled_from(VMS),
        st.integers(0, 2),
    ),
    max_size=25,
)


class Pods:
    """The pods of each VM, the newest last."""

    def __init__(self, world: PodWorld, zone: Zone) -> None:
        self.world, self.zone = world, zone
        self.alive: dict[str, list[str]] = {vm: [] for vm in VMS}
        self.ended: dict[str, list[str]] = {vm: [] for vm in VMS}
        self._count = 0

    async def do(self, event: str, vm: str, number: int) -> None:
        alive, ended = self.alive[vm], self.ended[vm]
        match event:
            case "start" if len(alive) < 2:
                self._count += 1
                name = f"{vm}-{self._count}"
                entries = entry_of("shop/green", 9 + VMS.index(vm))
                self.world.run(name, vm, NODES[number], up=not alive, entries=entries)
                alive.append(name)
                await self.world.settle(1.1)  # two pods of one second have no order
            case "ready" if len(alive) == 2:
                self.world.ready(alive[-1])
            case "arrive" if alive:
                self.world.arrived(alive[-1])
            case "complete" if alive:
                name = alive.pop(number % len(alive))
                self.world.complete(name)
                ended.append(name)
            case "remove" if ended:
                self.world.remove(ended.pop(0))
            case "kill":
                await self.zone.kill()
            case "restart":
                await self.zone.kill()
                self.zone.start()
            case _:
                await self.world.settle(0.3)

    async def end(self) -> None:
        """Let everything come to rest: the newest pod of each VM is where it runs."""
        await self.zone.kill()
        self.zone.start()
        for alive in self.alive.values():
            for name in alive[:-1]:
                self.world.complete(name)
            if alive:
                self.world.arrived(alive[-1])
                self.world.ready(alive[-1])
        await self.world.settle(60)


REBORN = [("start", "till", 0), ("complete", "till", 0), ("remove", "till", 0), ("start", "till", 1)]
"""Started anew elsewhere before anybody saw that it had ended."""


@settings(max_examples=40)
@example(REBORN)
@given(EVENTS)
def test_every_order_of_events_ends_with_one_place_for_each_vm(events: list[tuple[str, str, int]]) -> None:
    async def story() -> None:
        world = PodWorld()
        zone = world.zone()
        await world.network("shop.green")
        zone.start()
        await world.settle(1)
        pods = Pods(world, zone)
        for event in events:
            await pods.do(*event)
        await pods.end()
        assert find_conflicts(zone.nb.tables) == []
        of_vms = [row for row in zone.nb.table(PORTS) if row.get("external_ids", {}).get("pod") == "true"]
        reached = {row["name"] for row in of_vms if row.get("enabled", True) and row.get("addresses")}
        living = [alive[-1] for alive in pods.alive.values() if alive]
        assert reached == {name for pod in living for name in (f"shop_{pod}", f"shop.green_shop_{pod}")}
        assert len(of_vms) == len(reached)
        assert len(zone.nb.table(DHCP)) == 3 * len(living)
        away = {row["output_port"] for row in zone.nb.table(ROUTES)}
        assert away <= {f"rtos-{node}" for node in NODES}
        if not living:
            assert zone.nb.table(ROUTES) == []
        await zone.kill()

    run(story())
