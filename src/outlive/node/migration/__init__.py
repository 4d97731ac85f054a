"""Migrations of virtual machines from host to host."""
