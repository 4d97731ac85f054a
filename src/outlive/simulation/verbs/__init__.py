"""Everything that can happen to a virtual cluster, by the word that timelines use."""

from outlive.simulation.verbs.table import VERBS

__all__ = ["VERBS"]
