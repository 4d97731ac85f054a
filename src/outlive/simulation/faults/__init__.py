"""The faults of seeds: what may happen, by accident and by somebody's will, and when it does."""
