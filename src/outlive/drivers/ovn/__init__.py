"""OVN: its databases, and the switch of a host."""
