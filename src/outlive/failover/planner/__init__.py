"""What is to be done: clean up, choose who is served, assign, plan a fleet, repack.

Pure: plain data in, actions with reasons out. Modules are imported by name.
"""
