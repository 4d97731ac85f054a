"""What is promised, what it costs, what is survived, why something is not, and what would help. Modules by name.

``coverage`` says who has the slots that it needs, ``bound`` how little any plan needs, ``costs`` who uses how much.
``matrix`` is the state as ``tolerance`` and ``survival`` see it: which failures take which slot from whom.
``questions`` reads what a user asks about failures and words the answers. ``explain`` says why a VM has no slot,
``drain`` in what order hosts can be emptied, ``whatif`` what would be if hosts or VMs came or went. All of it is
pure.
"""
