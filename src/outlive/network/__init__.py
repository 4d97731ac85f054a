"""The network that follows a VM: addresses, DHCP, gateway and routes in OVN (docs/roles/network.md)."""
