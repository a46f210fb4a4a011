"""A service of anybody's under a binding: what one file of `services/` says, started and measured.

- ``description``: what a service file holds, and how its command lines are made
- ``options``: its options with their values as numbers, totals divided among the instances
- ``driver``: the tool ``service``
- ``trial``: the process of one trial: instances, balancer, warm-up, the phases of the load
- ``instance``: one started instance: is it ready, what do its counters say
- ``loads``: the kinds of load
- ``data``: prepared data, of a service that has any
"""
