"""Sentences of the codes of the host room."""

from __future__ import annotations

from typing import Dict

from . import Template

_PROBLEMS: Dict[str, Template] = {  # of a topology: what could not be read, or contradicts itself
    "no-cpu-folders": "no {folder}/cpu* folders: packages, cores and caches are unknown",
    "cpus-without-folder": "{cpus:CPUs} are online but have no folder in {folder}: left out",
    "maps-overlap": "{level} maps overlap: those of {cpus:CPUs} disagree",
    "package-ids-repeat": "package ids repeat in different groups: numbered in CPU order",
    "packages-unknown": "packages are unknown: no package_cpus, core_siblings or package id",
    "cores-unknown": "cores are unknown: no core_cpus or thread_siblings",
    "die-ids-unknown": "dies are unknown: die ids are all -1",
    "no-die-ids": "dies are unknown: this kernel has no die_id",
    "no-nodes": "no {folder}/node*: this kernel shows no nodes, all is taken as node 0",
    "node-cpus-unread": "{nodes:nodes}: neither cpulist nor cpumap can be read",
    "no-node-meminfo": "{nodes:nodes}: no meminfo",
    "no-node-memory-total": "{nodes:nodes}: no MemTotal in meminfo",
    "no-distances": "{nodes:nodes}: no distance file",
    "distances-do-not-fit": "{nodes:nodes}: the distance file does not hold one number for each "
    "node: ignored",
    "cpus-of-several-nodes": "{cpus:CPUs} are listed by several nodes: each is counted to the "
    "first of them",
    "cpus-of-no-node": "{cpus:CPUs} are online but belong to no node",
    "memory-disagrees": "the nodes' meminfo adds up to {nodes_bytes:size}, /proc/meminfo says "
    "{whole_bytes:size}: memory and free memory per node are doubtful",
    "caches-unnamed": "caches of {cpus:CPUs}: no level or type",
    "cache-sharers-unknown": "caches of {cpus:CPUs}: no list of the CPUs that share one",
    "cache-size-unknown": "caches of {cpus:CPUs}: L{level} without a size",
    "caches-unknown": lambda f: (
        "caches"
        + (f" of CPUs {f['cpus']}" if f["cpus"] else "")
        + " are unknown: no cpu*/cache folders"
    ),
    "modules-as-cores": "some hardware threads of a core have L1 data caches of their own: what "
    "the kernel calls a core here is a module of cores (AMD family 15h), or its maps are wrong",
    "pci-unread": "{count} PCI devices in {folder} have no readable class: left out",
}

SENTENCES: Dict[str, Template] = {**_PROBLEMS}
