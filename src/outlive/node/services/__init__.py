"""What the primary coordinator serves to managed networks: gateways, DHCP, names, firewall, metadata."""
