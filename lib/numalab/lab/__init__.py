"""The lab: emulated NUMA hosts, described by small files, for whoever owns none of the machines.

Kernel behaviour in a guest is real: placement, counters, reclaim. Times in it say nothing.
"""
