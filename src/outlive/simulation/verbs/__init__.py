"""Everything that can happen to a virtual cluster, by the name that timelines use."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.simulation.verbs import hardware, networks, operations, software
from outlive.simulation.verbs.table import VERBS

if TYPE_CHECKING:
    from outlive.simulation.verbs.networks import FAULTS, end_second_network
    from outlive.simulation.verbs.operations import change_spec
    from outlive.simulation.verbs.table import Name, Verb, register_verb
else:
    __getattr__ = load_exports(__name__)

__all__ = ["VERBS"]
