"""Attacks on the real server with real TLS: each lasts a few seconds and stays on this machine."""
