"""Inventories: what a source says about hosts and VMs becomes resources, checked as a whole before the first write."""
