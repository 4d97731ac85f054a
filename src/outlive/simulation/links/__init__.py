"""What hosts make of their own networks: devices, addresses of the primary and who takes them back, DHCP."""
