"""Sentences of the codes of the drivers room."""

from __future__ import annotations

from typing import Dict

from . import Template

SENTENCES: Dict[str, Template] = {
    "tool-said": "{text}",
    # options and sizes
    "too-many-threads": (
        "{threads} threads on {cpus:n CPU}: each needs a CPU of its own; ask for {cpus} or fewer, "
        "or for all"
    ),
    "needs-a-finer-model": (
        "the CPUs of this host's memory model may be further apart in time than a line takes from "
        "one core to another"
    ),
    "needs-seconds-of-a-model": (
        "balancing takes seconds, and the emulator needs minutes for a second of its memory model"
    ),
    "needs-two-cpus": "{mode} needs 2 CPUs; bind it to 2 or more",
    "needs-two-threads": (
        "loaded latency needs 2 threads: one measures while the others read; bind it to 2 CPUs or "
        "more"
    ),
    "needs-two-cores": (
        "loaded latency needs 2 cores: a hardware thread of the core that measures would slow it "
        "by sharing the core; bind it to 2 cores or more"
    ),
    "first-threads-only": (
        "every two of {cores:n core} by their first hardware thread, {siblings} of them also by "
        "their second"
    ),
    "cores-sampled": (
        "every two of {cores:n core} of {of} by their first hardware thread, {siblings} of them "
        "also by their second: for more pairs the time (seconds) is too short; drawn with seed "
        "{seed} so that every node and shared cache is there as far as there is room"
    ),
    "llc-unknown": (
        "the last-level caches are unknown: whether the {what} is 4× as large (STREAM's rule) "
        "cannot be checked"
    ),
    "llc-hidden": (
        "the kernel lists no cache that cores share; behind them there may be one (a system-level "
        "cache of Arm servers, an L3 that a hypervisor conceals): the {what} has {bytes:size}, 4× "
        "the caches that are listed and 256 MiB at least"
    ),
    "below-hidden-cache": (
        "the kernel lists no cache that cores share, and one behind them may hold much of the "
        "{what} of {bytes:size}; 256 MiB or more are sure: {why}"
    ),
    "below-four-caches": (
        "the {what} of {bytes:size} is {times:.2g}× the caches that the CPUs use: STREAM's rule "
        "(4×) was not met: {why}"
    ),
    "size-asked-for": "{asked} was asked for",
    "memory-limits-size": "the nodes can give {available:size}, of which {share:percent} are used",
    "size-compiled-in": "the arrays' size and the repeats are compiled into the program",
    "node-size-unknown": (
        "{option} {asked}: how much memory the node has is unknown; name a size like 64MiB"
    ),
    # where there is nothing to see, or what the host cannot bear
    "one-memory-node": (
        "fewer than two nodes have memory that may be used: pages have no choice of nodes"
    ),
    "no-other-node": "no node but {node} has CPUs and memory",
    "no-home-node": (
        "these CPUs ({cpus}) are not all of one node with memory; bind it to the CPUs of a node"
    ),
    "no-page-cache-there": (
        "directory {directory} is on {kind}, which keeps no sparse file in the page cache; set the "
        "option directory to a folder on a disk"
    ),
    "host-swaps": (
        "this host swaps: memory beyond a node's would push others' memory to the disk; swapoff -a "
        "for the time of the run"
    ),
    "host-panics-without-memory": "this host panics when memory runs out (vm.panic_on_oom)",
    "huge-page-pool-too-small": (
        "the pool of huge pages of {nodes:nodes} has {free:size} free, {needed:size} are needed; "
        "reserve some by vm.nr_hugepages"
    ),
    # why there is no value
    "huge-pages-not-got": (
        "huge pages were asked for (pages: {pages}) and {share:percent} of the buffer got them: "
        "the latency is a mixture; free memory in one piece (vm.compact_memory) or take pages: base"
    ),
    "pairs-missing": (
        "{missing} of {pairs:n pair} of CPUs have no latency (each row says why): the host had "
        "other work"
    ),
    "chaser-not-alone": (
        "the threads were bound to no CPUs: the core that measured the latency may have carried "
        "load itself"
    ),
    "no-non-temporal-stores": "the probe knows no stores of this processor that bypass the caches",
    "huge-pages-unknown": "the kernel does not tell how many huge pages there are",
    "readers-not-run": "the threads that should have read were not run",
    "no-page-placed": "no page was placed",
    "home-node-unknown": "the CPUs are not all of one node",
    "page-cache-was-dropped": "it was dropped before",
    "where-pages-were-unknown": "where its pages were is not known",
    "killed-by-signal": "it was killed by signal {signal}",
    "peak-memory-unknown": "it ended before its peak memory could be read",
    "engine-starts-it": "{engine} lets its engine start the container, which is not bound by this: "
    "give it --cpuset-cpus={cpus} --cpuset-mems={nodes}. Counters of processes are {engine}'s own",
    "numactl-gives-none": "numactl says that it is not available",
    "not-validated": "STREAM did not validate its result: {text}",
    "output-ends-early": "the output ends before the final report",
    "checkpoint-missed": (
        "sysbench missed the checkpoint that ends the warm-up: the host was overloaded"
    ),
    "no-event-completed": "no event was completed in the measured period",
    # MLC
    "mlc-leaves-prefetchers": "run with -e: MLC leaves the hardware prefetchers as they are",
    "mlc-random-access": "latency by random access (-r), which the prefetchers do not hide",
    "mlc-binds-itself": "MLC chooses CPUs and memory of this matrix itself, whatever the binding",
}
