"""The former place of sets of slots."""

from outlive.failover.slotsets import bits

__all__ = ["bits"]
