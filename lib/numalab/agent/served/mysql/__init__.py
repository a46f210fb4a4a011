"""A private MySQL or MariaDB server for each trial, asked by sysbench.

- ``driver``: the measuring tool ``mysql_server``: options, sizes, metrics
- ``server``: which servers the host has, their configuration and command lines
- ``instance``: a started server; ``wire``: the client half of its protocol, as far as needed here
- ``data``: the prepared tables
- ``trial``: the process of one trial, and its sysbench
"""
