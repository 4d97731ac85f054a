"""What would happen if: the pure part. In what order hosts can be emptied, and why they cannot.

``steps`` are the questions and answers, ``layout`` is the fleet as steps leave it, ``ordering`` finds an order by hand,
``search`` looks through all of them where the fleet is small, ``proofs`` shows what cannot be. Modules are imported by
name; whoever alters a fleet and plans it again is ``outlive.failover.analysis.whatif.questions``.
"""
