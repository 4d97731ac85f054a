"""Wires the parts of each role from ports: ``cli`` passes the real drivers, a simulation its own."""
