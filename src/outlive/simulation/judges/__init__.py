"""The promises of the safety protocol as code, one function each (docs/concepts/safety.md#what-is-promised).

S4, a batch of commitment changes applies whole or not at all, has nothing to look at before there are commitments.
"""
