"""What would be if hosts or VMs came or went, or more slots were asked for. Nothing is ever written.

``altered`` is a cluster with changes in memory, ``restarts`` says where VMs come to, ``questions`` asks the planner
about it, and ``answers`` is the form of every answer.
"""
