"""The promises of the safety protocol as code, one function each (docs/concepts/safety.md#what-is-promised)."""
