"""Outlive: virtual machines that outlive their hosts."""

__version__ = "0.1.0"
