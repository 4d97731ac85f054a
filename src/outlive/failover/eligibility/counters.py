"""The former name of the conflict index."""

from outlive.failover.conflicts import ConflictIndex as Counters

__all__ = ["Counters"]
