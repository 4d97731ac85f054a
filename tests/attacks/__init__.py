"""Attacks on a real server: each was a way in, or a way to stop it, once."""
