"""Sentences of the codes of the served room."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

from . import Template, units

Fields = Mapping[str, Any]
_ERRORS = {
    "status": "answers that are not 2xx",
    "protocol": "answers that are no HTTP/1.1",
    "reset": "connections that ended before the answer",
    "timeout": "no answer in time",
    "connect": "connections that could not be made",
}


def _of(said: Fields) -> str:
    return f" of {said['instance']}" if said.get("instance") else ""


def _on(said: Fields) -> str:
    return f"{said['instance']}: " if said.get("instance") else ""


def _words(said: Fields) -> str:
    return f": {said['said']}" if said.get("said") else ""


def _about_server(template: str) -> Callable[[Fields], str]:
    """Return a sentence about a server of ours, its own last words after it."""
    return lambda said: (
        f"the server{_of(said)} ({said['title']}) {template.format_map(said)}{_words(said)}"
    )


def _about_instance(template: str) -> Template:
    """Return a sentence that begins with the instance's name where there are several."""
    return lambda said: _on(said) + template.format_map(said)


def _not_ready(said: Fields) -> str:
    last = f" ({said['error']})" if said.get("error") else ""
    return _about_server(f"did not answer within {said['limit_s']:g} s of its start{last}")(said)


def _hangs(said: Fields) -> str:
    last = f" ({said['error']})" if said.get("error") else ""
    nothing = f"did not answer, and did nothing for {said['limit_s']:g} s"
    return _about_server(f"{nothing}{last}")(said)


def _client_did_not_end(said: Fields) -> str:
    server = "" if said["server_answers"] else "; the server did not answer either"
    return (
        f"{said['program']} did not end within {said['limit_s']:.0f} s after its "
        f"{said['planned_s']:g} s and was killed{_of(said)}{server}"
    )


def _client_failed(said: Fields) -> str:
    return (
        f"{said['program']} failed in the {said['phase']}{_of(said)} (exit status "
        f"{said['exit_status']}){_words(said)}"
    )


def _met_errors(said: Fields) -> str:
    text = f"{said['client']} met {said['errors']} errors in {said['transactions']} transactions"
    kinds = [f"{_ERRORS.get(kind, kind)}: {count}" for kind, count in said.get("kinds", {}).items()]
    return _on(said) + text + (f" ({', '.join(kinds)})" if kinds else "")


def _not_made(said: Fields) -> str:
    how = f" (exit status {said['exit_status']})" if said["exit_status"] is not None else ""
    how = f" (killed by signal {said['signal']})" if said["signal"] is not None else how
    return f"the data set could not be prepared{how}{_words(said)}"


def _needs_tables(said: Fields) -> str:
    sets = [
        f"data set: {one['rows']:,} rows in {units.count(one['tables'], 'table')}, "
        f"{units.size(one['bytes'])} of disk"
        for one in said["sets"]
    ]
    return "; ".join([*sets, f"{units.size(said['memory'])} of memory"])


SENTENCES: Dict[str, Template] = {
    # the client's CPUs
    "client-shares-as-asked": "as asked",
    "all-cpus-are-the-clients": "all CPUs are the client's",
    "bindings-name-every-cpu": "the bindings name every CPU",
    "few-cores-on-node": ("node {node} has {cores:n core}: too few for the client to have its own"),
    "client-shares-cpus": "client shares CPUs with the server",
    "client-elsewhere": "the client is on {host}: latencies hold the network's",
    # a client on another host
    "client-host-silent": "the client's host {host} does not answer: {error}",
    "client-host-unusable": "the client's host {host} cannot be used: {said}",
    "client-host-without-program": "the client's host {host} has no {program} on its PATH",
    "address-not-ours": (
        "the client's host sees this one as {address}, where no server can listen: {error}"
    ),
    # a server's life
    "program-does-not-start": "{program} cannot be started: {error}",
    "server-refused-to-start": _about_server("refused to start ({ended})"),
    "server-did-not-answer": _not_ready,
    "server-hangs": _hangs,
    "server-died": _about_server("died {when} ({ended})"),
    "server-did-not-shut-down": _about_server(
        "did not shut down within {limit_s:g} s and was killed"
    ),
    "server-shut-down-badly": _about_server("did not shut down in order ({ended})"),
    "server-tells-no-counters": _about_server(
        "does not answer when it is asked for its counters: {error}"
    ),
    "stop-command-failed": _about_server("was not ended by its command for that: {error}"),
    "trial-broke": "the trial's own process failed: {error}",
    "server-lacks-counter": _about_server("does not tell its counter {counter}"),
    # a service of one file
    "program-missing": lambda said: (
        f"{said['service']} needs {said['needs']}, and this host has none of: "
        f"{', '.join(said['candidates'])}"
    ),
    "service-folder-missing": "the file of {service} names files of its own folder ({{here}}: "
    "{folder}), and this host has no such folder",
    "port-taken": _about_instance("another program listens on port {port}"),
    "service-not-warmed": _about_server("could not be warmed up: {error}"),
    "service-not-warm": (
        "not warm: after {seconds:.0f} s of load {counter} still grew by {below:g} a second or more"
    ),
    "service-warming": _about_instance(
        "{counter} grew by {grew:.2g} a second while it was measured, not by less than {below:g}"
    ),
    "no-saturation": "saturation was not measured",
    "no-rate": "no constant rate was asked for, or the load keeps none",
    "requests-not-counted": "neither {client} nor a counter tells the number of requests",
    "figure-missing": _about_instance("the load printed no {figure}"),
    "needs-data": (
        "data set: {bytes:size} of disk, prepared once in about {seconds:.0f} s; "
        "{memory:size} of memory"
    ),
    "preparing-data": "preparing the data set {data}, once: about {seconds:.0f} s",
    "data-command-failed": "{command} failed while the data were prepared: {said}",
    "balancer-was-the-limit": (
        "the balancer was the limit, not the server: it used {share:percent} of its one CPU"
    ),
    "no-capacity": "{cell} answered too few requests for a rate to be half of them",
    # a client's life
    "client-cpus-gone": (
        "{program} cannot run on CPUs {cpus}: they are offline or outside this process's cpuset"
    ),
    "client-did-not-end": _client_did_not_end,
    "client-failed": _client_failed,
    "client-without-checkpoint": _about_instance(
        "{program} never said that its warm-up had ended: nothing tells what of its figures was "
        "measured"
    ),
    "client-silent": "{client} did not say it",
    "client-lost-connection": _about_instance("{client} lost its connection {times} times"),
    "client-met-errors": _met_errors,
    "client-did-nothing": _about_instance("{client} completed no transaction"),
    "client-was-the-limit": (
        "{client} was the limit, not the server: it used {share:percent} of its own CPUs"
    ),
    "counters-began-late": _about_instance(
        "the counters beside it began {late_s:.1f} s after the measurement"
    ),
    "not-warm": _about_instance(
        "not warm: the server read {pages} pages from the disk while it was measured"
    ),
    # a data set
    "data-needs-disk": (
        "the data set needs about {need:size} of disk in {folder}, where {free:size} are free"
    ),
    "data-not-made": _not_made,
    "data-being-made": "another process is preparing a data set ({folder})",
    "no-disk-left-for-data": "the disk is full: the data set does not fit ({said})",
    "copy-in-use": "the working copy {folder} is in use by another server",
    "no-copy": "no working copy of the data set: {error} ({file})",
    "no-data-set": "{folder} holds no whole data set",
    # MySQL and MariaDB
    "no-mysql-server": "there is no MySQL or MariaDB server on this host",
    "only-another-server": "there is no {wanted} server here, only {title}",
    "interleaves-over-memory-only": (
        "{setting} takes every node that the server may use, also {nodes:nodes}, which has memory "
        "without CPUs"
    ),
    "setting-not-built-in": "{title} was built without {setting}",
    "data-below-caches": (
        "the tables ({tables:size}) are not four times the last-level caches ({caches:size}): the "
        "distance of memory shows less than it could, and nothing is judged by it"
    ),
    "writes-as": (
        "redo log of {redo:size}; a commit reaches the operating system at once and the disk once "
        "a second; no doublewrite, no pages flushed ahead of time"
    ),
    "waited-for-disk": _about_instance(
        "the disk was measured too: pages flushed for want of room in the redo log: {pages}, "
        "waits for the disk: {waits}"
    ),
    "rate-missed": _about_instance(
        "{done:.0f} of {asked} transactions a second that were asked for"
    ),
    "too-few-open-files": (
        "{sessions} sessions need {need} open files, and this user may have {limit}"
    ),
    "pool-too-small": "pool {asked} does not hold the tables ({tables:size})",
    "pool-not-filled": lambda said: (
        f"the buffer pool{_of(said)} could not be filled: {said['error']}"
    ),
    "nothing-to-place": "{option} {value} places memory on nodes, and only one has memory here",
    "needs-tables": _needs_tables,
    "preparing-tables": (
        "preparing {rows:,} rows in {tables:n table} for {title}, once: about {seconds:.0f} s"
    ),
    "making-data-directory": "making a data directory for {title}",
    "no-data-directory": "{title} cannot make its data directory: {said}",
    "loading-rows": "loading {rows:,} rows",
    "checking-table": "checking table {number} of {of}",
    "tables-not-loaded": "sysbench could not fill the tables: {said}",
    "rows-missing": "{table} has {rows} rows instead of {wanted} after it was loaded",
    "table-damaged": "{table} is damaged after it was loaded: {said}",
}
