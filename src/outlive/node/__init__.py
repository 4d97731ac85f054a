"""What runs on every host: its membership, its virtual machines, and the fencing of peers that fall silent.

Decisions are pure functions over plain structs, one module an idea; ``node/decisions.py`` lists those that have a name
(docs/reference/node-decisions.md). Nothing here reads a clock, a store or a driver except through what is handed in.
"""
