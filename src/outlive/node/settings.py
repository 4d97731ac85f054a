"""How a node daemon works, where ``Hypervisor.spec`` says nothing: times and limits.

The timing of fencing is not here: it is a profile (``outlive.node.fencing.policy``), because fencers and hosts have
to agree upon it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.runtime.units import Duration


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``node``."""

    look: Duration = Duration(5.0)
    """How often the daemon reads what is wanted of its host, and lists its domains in case one ended by itself."""
    usage: Duration = Duration(30.0)
    """How often the host's figures are published."""
    write_limit: Duration = Duration(2.0)
    """How long one renewal may take before it counts as lost."""
    call_limit: Duration = Duration(30.0)
    """How long the hypervisor may take for one call, except those that have limits of their own."""
    create_limit: Duration = Duration(60.0)
    """How long creating a domain may take."""
    shutdown_limit: Duration = Duration(180.0)
    """How long a guest may take to shut down before it is stopped hard."""
    going_down: Literal["shutdown", "leave"] = "shutdown"
    """Whether guests are asked to end when the daemon stops because its machine goes down."""
    starts: int = 16
    """Virtual machines that are started at once."""
    start_tries: int = 3
    """Starts that may fail before a virtual machine waits for an operator."""
    start_after_limit: Duration = Duration(180.0)
    """How long a virtual machine waits for those that it starts after (``spec.startAfter``); 0: it waits for nobody."""
    moves: int = 2
    """Live moves at once out of this host, and as many into it."""
    move_limit: Duration = Duration(30.0)
    """How long the other side of a move may take for its next step."""
    transfer_limit: Duration = Duration(900.0)
    """How long a live transfer may take."""
    downtime_ms: int = 300
    """The longest pause of a guest while it moves live."""
    drain_wait: Duration = Duration(120.0)
    """How long emptying a host waits for one virtual machine before it goes on with the next."""
    require_fit: bool = True
    """Whether a virtual machine only moves to hosts that have the memory for it."""
    mem_means: Literal["provisioned", "free"] = "provisioned"
    """What the selector ``mem`` looks at."""
    store_cas_per_s: float | None = None
    """Compare-and-swaps that the store was measured to do each second; absent: not measured."""
