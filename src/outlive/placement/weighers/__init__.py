"""The weighers: each scores the hosts that the filters left."""
