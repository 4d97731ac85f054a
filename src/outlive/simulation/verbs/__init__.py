"""Everything that can happen to a virtual cluster, by the name that timelines use."""

from outlive.simulation.verbs import ensembles, hardware, links, networks, operations, sales, software  # noqa: F401 - they enter their verbs
from outlive.simulation.verbs.table import VERBS

__all__ = ["VERBS"]
