"""What failover shows: metrics, events, tables and HTML reports. Modules are imported by name."""
