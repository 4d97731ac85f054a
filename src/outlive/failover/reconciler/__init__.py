"""The reconciler of failover: it keeps the promise, and is what acts.

``cache`` follows the informers and marks VMs as dirty, and ``comparison`` finds what it missed; ``reconciler`` looks
at the dirty ones at once and at everybody in each tick; ``inputs`` makes the input of every decision; ``assignment``
decides on the living index, ``decider`` runs what is long in a child process and records every decision, ``fleet_plan``
plans the whole fleet; ``apply`` checks changes again and writes them through ``writes``; ``report`` publishes
``coverage``. ``validation`` asks about one slot at a time, ``used`` deletes slots that have done their work. All
removals draw on one ``budget``.
"""
