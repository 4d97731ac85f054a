"""What failover tells the outside: metrics and events. Modules are imported by name."""
