"""Logs that another program wrote, made into runs."""
