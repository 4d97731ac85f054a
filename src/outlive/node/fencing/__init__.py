"""Declaring a host dead: who looks silent, who may be condemned, and what proves that an epoch is over."""
