"""All pictures of the manual, drawn from text in this repository. ``scripts/pictures`` writes them.

Diagrams of states come from the tables in the code, the time line of a recovery from a simulated run, the tree of the
night and the table of planned work from their pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support.pictures import architecture, coverage, pages, recovery, states, timelines
from tests.support.pictures.canvas import Drawing

FOLDER: Final = Path(__file__).resolve().parents[3] / "docs/pictures"
STATES: Final[Mapping[str, Callable[[], Drawing]]] = {
    "host-states": states.host,
    "fence-states": states.fence,
    "guard-states": states.guard,
    "vm-states": states.vm,
    "recovery-states": states.recovery,
    "move-states": states.migration,
}
"""Diagrams of states …"""
PICTURES: Final[Mapping[str, Callable[[], Drawing]]] = {
    "architecture": architecture.architecture,
    "recovery": recovery.timeline,
    "coverage": coverage.failures,
    "sharing": coverage.sharing,
    "night": pages.night,
    "stops": pages.stops,
    **STATES,
    "proof-power": timelines.power,
    "proof-watchdog": timelines.watchdog,
    "proof-isolation": timelines.isolation,
    "proof-operator": timelines.operator,
    "proof-reboot": timelines.reboot,
    "proof-self-cleaning": timelines.self_cleaned,
    "network-layer2": timelines.layer2,
    "network-localnet": timelines.localnet,
    "network-routed": timelines.routed,
}
"""… and all pictures: name of the file in docs/pictures → what draws it."""
