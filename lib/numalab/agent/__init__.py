"""The half of numalab that runs on the host under test: Python's standard library only."""

VERSION = "0.1.0"
