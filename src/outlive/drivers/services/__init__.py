"""Programs of the host that serve managed networks: dnsmasq, PowerDNS, nft, and a metadata server of our own."""
