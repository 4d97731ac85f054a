"""What is promised, what it costs, and what is survived. Pure; modules are imported by name.

``coverage`` says who has the slots that it needs, ``bound`` how little any plan needs, ``costs`` who uses how much.
``tolerance`` says how many failures every VM survives (``standing`` is the state as it sees it, ``covers`` its search).
``failures`` answers questions about failures (``asking`` reads them, ``cases`` is one case, ``enumeration`` all of
them, ``matching`` who takes which slot), and ``wording`` says the answers to people.
"""
