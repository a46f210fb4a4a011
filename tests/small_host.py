"""A host of the lab, as small as one can be, for tests that boot none."""

DEFINITION = """
says: pretended
arch: x86_64
processor: max
sockets: 1
nodes: 2
cores: 1
memory: 128 MiB
distances: [[10, 20], [20, 10]]
"""
