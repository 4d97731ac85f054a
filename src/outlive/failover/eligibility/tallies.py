"""The former name of the conflict index."""

from outlive.failover.conflicts import ConflictIndex as Tallies

__all__ = ["Tallies"]
