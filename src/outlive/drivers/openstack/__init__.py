"""OpenStack: a session with Keystone, Nova's lists, Limes' commitments, and one mapping of Nova's records.

Modules are imported by name; what needs openstacksdk imports it when it is used (the extra ``openstack``).
"""
