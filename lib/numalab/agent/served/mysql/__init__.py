"""A private MySQL or MariaDB server for each trial, its data set, and the stage it performs on.

- ``driver``: the measuring tool ``mysql_server``
- ``wire``: the client half of the client/server protocol, as far as it is needed here
- ``server``: which servers the host has, their configuration, their start and their end
- ``data``: the prepared data sets in the cache, and the working copies of them
- ``remote``: a client that is on another host
- ``stage``: the process of one trial, which speaks the handshake of ``agent/trial/trial.py``
"""
