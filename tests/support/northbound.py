"""The simulated northbound database of one zone, with hooks around each commit and a look at every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlive.base import Clock, Random
from outlive.network import (
    CLUSTER_ROUTER,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    SWITCHES,
    Columns,
    Plan,
    Receipt,
    Rows,
    Scope,
    find_conflicts,
)
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn

NEW, OLD = "25.03.1-20.41.0-77.6", "23.03.1-20.27.0-70.6"


class WatchedNorthbound(SimulatedNorthbound):
    """``before`` and ``after`` are called around each transaction that changes something, and may raise."""

    def __init__(self, clock: Clock, random: Random, version: str = NEW) -> None:
        self.ovn = SimulatedOvn(version=version)
        super().__init__(self.ovn, clock, random)
        self.commits: list[str] = []
        """Comments of transactions that changed something."""
        self.before: Callable[[str], None] = lambda _comment: None
        self.after: Callable[[str], None] = lambda _comment: None
        self.ovn.rows = {ROUTERS: [{"name": CLUSTER_ROUTER}]}

    def add_node(self, name: str) -> None:
        """The switch of a node, and what joins it to the router, as the cluster's network makes them."""
        self.add_switch(name)
        self.add(PORTS, name=f"stor-{name}", switch=name, type="router", options={"router-port": f"rtos-{name}"})
        self.add(ROUTER_PORTS, name=f"rtos-{name}", mac="0a:58:00:00:00:01")

    def add_switch(self, name: str) -> None:
        """A switch."""
        self.add(SWITCHES, name=name)

    def add(self, table: str, **row: Any) -> None:
        """A row of somebody else's."""
        self.ovn.rows = {**self.ovn.rows, table: [*self.ovn.rows.get(table, ()), row]}

    async def transact(self, scope: Scope, plan: Plan, *, comment: str, numbered: bool = True) -> Receipt:
        self.before(comment)
        receipt = await super().transact(scope, plan, comment=comment, numbered=numbered)
        if receipt.ops:
            self.commits.append(comment)
            assert [one.rule for one in find_conflicts(self.tables)] == []
            self.after(comment)
        return receipt

    @property
    def tables(self) -> Rows:
        """All rows."""
        return self.ovn.rows

    @property
    def away(self) -> bool:
        """Whether it does not answer."""
        return self.ovn.faults.northbound_down

    @away.setter
    def away(self, away: bool) -> None:
        self.ovn.faults.northbound_down = away

    def port(self, name: str) -> Columns | None:
        """A logical switch port."""
        return next((row for row in self.table(PORTS) if row.get("name") == name), None)

    def table(self, name: str) -> list[Columns]:
        """The rows of a table."""
        return self.ovn.rows.get(name, [])
