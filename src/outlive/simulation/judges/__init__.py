"""The promises of the safety protocol as code, one function each (docs/concepts/safety.md#what-is-promised)."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.simulation.judges.addresses import ABSENT_S
    from outlive.simulation.judges.commitments import IN_FLIGHT_S
    from outlive.simulation.judges.judge import FINDINGS_LIMIT, HOLDERS_LIMIT, PACE_WRITES, REFUSED_S, Judge
    from outlive.simulation.judges.networks import check_network, find_leftover_rows
    from outlive.simulation.judges.rest import check_runs_or_reason
    from outlive.simulation.judges.truth import InvariantViolation, Truth
    from outlive.simulation.judges.vms import KNOWN_S, ON_THE_WAY_S, Slow, check_degrading_move
else:
    __getattr__ = load_exports(__name__)
