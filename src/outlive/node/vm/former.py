"""Ending, at the guard, creates that nobody here follows any more: those of a daemon that was killed, above all.

The guard calls no host empty while a create counts as under way, so one whose end nobody tells costs the host a reset
if its gate is shut meanwhile. Only the hypervisor knows the end: a create that was handed to it takes effect whoever
asked, and is listed as starting until then. What a process that is gone asked for and that is not listed never happens
any more (``outlive.node.ports.hypervisor``). This rests on there being one daemon a host, which the file lock and the
membership see to: another one that lives may be between the guard's yes and its call.
"""

from __future__ import annotations

from collections.abc import Collection

from outlive.base.logging import get_logger
from outlive.node.ports.guard import GuardPort
from outlive.node.ports.hypervisor import DomainState
from outlive.node.vm.local import LocalDomains

_log = get_logger("node.vm")


async def end_former_creates(guard: GuardPort, here: LocalDomains, own: Collection[str]) -> int:
    """Tell the guard the end of every create but ``own`` ones that a look shows to be over; how many.

    The guard is asked first, then the hypervisor: what is begun in between is not among what is ended. ``Unavailable``
    where one of them does not answer; then it is for the next time.
    """
    former = [run for run in (await guard.report()).creates if run not in own]
    if not former:
        return 0
    await here.look()
    starting = {domain.run_id for domain in here.domains.values() if domain.state is DomainState.STARTING}
    over = [run for run in former if run not in starting]
    for run in over:
        await guard.end_create(run)
        _log.info("guard.former-create-ended", run_id=run)
    return len(over)
