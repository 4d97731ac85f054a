"""The storage agent: pods leave a node whose DRBD volume lost quorum (docs/roles/storage-agent.md)."""
