"""The virtual machines of one host: what an observed state asks for, requests of users, moves, draining and accounting.

The functions decide, and nothing else; who may run a virtual machine at all is settled by its holders, not here.
"""
