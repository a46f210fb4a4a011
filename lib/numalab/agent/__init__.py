"""The half of numalab that runs on the host under test: Python's standard library only."""

VERSION = "0.1.0"
SCHEMA = 1  # of every JSON file that crosses the border between the two halves
