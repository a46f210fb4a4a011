"""Servers that an experiment starts for itself, one package each."""
