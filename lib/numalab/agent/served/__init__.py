"""Servers under a binding, asked by a client on CPUs of its own: what all of them have in common.

- ``driver``: the base of the measuring tools: the client's CPUs, command line, output
- ``trial``: the process of one trial, which speaks the handshake of ``agent/trial/trial.py``
- ``instance``: a private server, its start and its end
- ``client``: one run of a load generator: its warm-up, then what is measured
- ``load``: clients of several servers: our own for HTTP, and pgbench
- ``balancer``: HAProxy in front of several instances
- ``remote``: a client that is on another host
- ``dataset``: prepared data in the cache, and working copies of it (``copying``); ``private``: an
  empty folder instead

Each server has a folder here, which says what is its own: see ``mysql``; ``service`` is any that a
file describes.
"""
