"""The invariants of the safety protocol as code, one function each (docs/concepts/safety.md#what-is-promised).

S4, a batch of commitment changes applies whole or not at all, has nothing to look at before there are commitments.
"""

from outlive.simulation.invariants.leaving import Slow, leaves_alive_and_for_better
from outlive.simulation.invariants.proofs import (
    dead_with_proof,
    entries_go_with_proof,
    proof_is_true,
    recovered_only_when_mute,
)
from outlive.simulation.invariants.resting import (
    coverage_is_true,
    instances_are_counted_once,
    no_room_is_counted_twice,
    runs_or_says_why,
    wanted,
)
from outlive.simulation.invariants.running import (
    held_where_it_runs,
    never_from_the_past,
    one_presence,
    one_writer,
)
from outlive.simulation.invariants.truth import Truth, Violation
from outlive.simulation.invariants.writing import acknowledged_is_kept, within_limits, written_by_its_owner

__all__ = [
    "Slow",
    "Truth",
    "Violation",
    "acknowledged_is_kept",
    "coverage_is_true",
    "dead_with_proof",
    "entries_go_with_proof",
    "held_where_it_runs",
    "instances_are_counted_once",
    "leaves_alive_and_for_better",
    "never_from_the_past",
    "no_room_is_counted_twice",
    "one_presence",
    "one_writer",
    "proof_is_true",
    "recovered_only_when_mute",
    "runs_or_says_why",
    "wanted",
    "within_limits",
    "written_by_its_owner",
]
