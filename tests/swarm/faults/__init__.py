"""The faults of seeds: accidents, requests of users and operators, and their times."""
