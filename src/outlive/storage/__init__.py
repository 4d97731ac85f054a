"""The storage agent: pods leave a node whose DRBD volumes cannot write any more (docs/roles/storage-agent.md).

Every decision is a pure function over plain data; ``storage/decisions.py`` lists them by name
(docs/reference/storage-decisions.md).
"""
