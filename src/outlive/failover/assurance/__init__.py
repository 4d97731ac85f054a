"""What can be promised and what cannot: coverage, lower bounds, tolerance. Pure; modules are imported by name."""
