"""The storage schema: where each kind lives in a tree of paths, which version of it is stored, and how that changes.

Each version is a numbered document that never changes once it was released (``documents``). ``plan`` computes what
takes a tree from one version to another, ``gate`` when a cluster may go there (docs/operating/upgrades.md).
"""
