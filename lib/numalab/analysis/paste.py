"""Lines to paste that put a program under a cell's binding for good, place by place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..agent import drivers
from ..agent.contract import Advice, Bound, Cell, ToolRecord
from ..agent.errors import Fault
from ..agent.plan.kinds import POLICIES

_EACH = "%i"  # of an instance, as systemd writes it
_SYSTEMD = ("default", "preferred", "bind", "interleave", "local")  # its policies


@dataclass(frozen=True)
class Lines:
    """What to paste in one place: ``where`` names it, ``remarks`` say what to mind."""

    where: str
    lines: list[str]
    remarks: list[str] = field(default_factory=list)


def paste(tool: ToolRecord, cell: Cell) -> list[Lines]:
    """Return the lines for a cell, of one program or of several instances.

    Their meaning: numactl(8); systemd.exec(5) (``CPUAffinity=`` assignments are merged until an
    empty one; ``NUMAPolicy=`` is default, preferred, bind, interleave or local, of systemd 243 or
    newer, with its nodes in ``NUMAMask=``, for preferred a single one; neither resolves ``%i``, so
    each instance of a template has a file of its own); docker-run(1) (``--cpuset-mems`` confines
    memory to nodes, which is membind; it has no other policy); the Compose Specification (a service
    has ``cpuset``, its CPUs, and no key for the nodes of its memory); HAProxy's configuration
    manual (``numa-cpu-mapping``). None for a policy that is not known: it may be a stranger's text.
    """
    if any(one.memory.policy not in POLICIES for one in (cell, *cell.instances)):
        return []
    try:
        own = drivers.driver(tool.name).advice(tool, cell)
    except (KeyError, TypeError, AttributeError) as error:  # the plan may be a stranger's
        raise Fault(f"the plan does not say how {tool.name} was started: {error!r}") from None
    if cell.instances:
        return _of_instances(own, cell)
    found = []
    if cell.numactl:
        remarks = [one.replace(_EACH, str(own.first)) for one in _of_command(own)]
        line = _at_once(own, cell.numactl, str(own.first))
        found.append(Lines("numactl", [line], remarks))
        where = f"systemd: systemctl edit {own.service}.service"
        found.append(Lines(where, _systemd(cell), _of_systemd(cell)))
        found.append(_docker(own, cell))
    if own.file:
        lines = [line.replace(_EACH, str(own.first)) for line in own.lines]
        found.append(Lines(own.file, lines, list(own.remarks)))
    return found


def _at_once(own: Advice, numactl: Sequence[str], number: str) -> str:
    """The command line that starts one under its binding, in a shell."""
    return " ".join([*_settings(own), *numactl, own.program]).replace(_EACH, number)


def _settings(own: Advice) -> list[str]:
    """Its environment as words of a shell."""
    pairs = (one.partition("=") for one in own.environment)
    return [f"{key}={shlex.quote(value)}" for key, _, value in pairs]


def _of_command(own: Advice) -> list[str]:
    """What to mind of the command line itself, where no place of its own says it."""
    return [] if own.file else list(own.remarks)


def _of_systemd(bound: Bound) -> list[str]:
    policy = bound.memory.policy
    if policy in _SYSTEMD:
        return [] if policy == "default" else ["systemd 243 or newer"]
    how = f"in ExecStart, start the program by {_memory_option(bound)}"
    return [f"systemd has no memory policy {policy}: {how}"]


def _memory_option(bound: Bound) -> str:
    """The words that give a program its memory policy alone."""
    return " ".join(replace(bound, cpus=None).numactl)


def _systemd(bound: Bound) -> list[str]:
    lines = ["[Service]"]
    if bound.cpus is not None:
        lines += ["CPUAffinity=", f"CPUAffinity={bound.cpus}"]
    if bound.memory.policy != "default" and bound.memory.policy in _SYSTEMD:
        lines += [f"NUMAPolicy={bound.memory.policy}", f"NUMAMask={bound.memory.nodes}"]
    return lines


def _docker(own: Advice, cell: Cell) -> Lines:
    policy, nodes = cell.memory.policy, cell.memory.nodes
    settings = [one.replace(_EACH, str(own.first)) for one in _settings(own)]
    words = ["docker", "run", *(f"-e {one}" for one in settings)]
    if cell.cpus is not None:
        words.append(f"--cpuset-cpus={cell.cpus}")
    if policy == "default":
        return Lines("docker", [" ".join([*words, "IMAGE"])])
    if policy == "bind":
        return Lines("docker", [" ".join([*words, f"--cpuset-mems={nodes}", "IMAGE"])])
    program = own.program.replace(_EACH, str(own.first))
    words += ["--cap-add=SYS_NICE", "IMAGE", _memory_option(cell), program]
    return Lines(
        "docker",
        [" ".join(words)],
        [
            f"docker has no memory policy {policy}: --cpuset-mems can only confine; numactl must "
            "be in the image, and its system call needs SYS_NICE (Docker 18.09 or newer)"
        ],
    )


# ---------------------------------------------------------------- several instances


def _of_instances(own: Advice, cell: Cell) -> list[Lines]:
    numbers = [str(own.first + n) for n in range(len(cell.instances))]
    each = dict(zip(numbers, cell.instances, strict=True))
    found = []
    if any(one.numactl for one in cell.instances):
        lines = [_at_once(own, one.numactl, n) for n, one in each.items()]
        found.append(Lines("numactl", lines, _of_command(own)))
    found.append(_template(own))
    if any(one.numactl for one in cell.instances):
        lines = []
        for n, one in each.items():
            path = f"/etc/systemd/system/{own.service}@{n}.service.d/numa.conf"
            lines += [f"# {path}", *_systemd(one), ""]
        where = "systemd: a file for each instance, named by its first line"
        found.append(Lines(where, lines[:-1], _of_systemd(cell.instances[0])))
    units = f"{own.service}@{{{numbers[0]}..{numbers[-1]}}}"
    start = ["systemctl daemon-reload", f"systemctl enable --now {units}"]
    found.append(Lines("systemd: to start them", start))
    if any(one.numactl for one in cell.instances):
        found.append(_compose(own, each))
    if own.address:
        found.append(_haproxy(own, list(each)))
    if own.file:
        found.append(Lines(own.file, list(own.lines), list(own.remarks)))
    return found


def _template(own: Advice) -> Lines:
    name = own.service
    environment = [f"Environment={json.dumps(_for_systemd(one))}" for one in own.environment]
    # Backslashes (systemd.syntax(7)) and variables (systemd.service(5)) are read within quotes too.
    command = _for_systemd(own.program).replace("\\", "\\\\").replace("\n", "\\n")
    command = command.replace("$", "$$")
    lines = [
        "[Unit]", f"Description={name}, instance %i", "",
        "[Service]", f"User={name}", f"RuntimeDirectory={name}/%i",
        f"StateDirectory={name}/%i", f"WorkingDirectory=/var/lib/{name}/%i",
        *environment, f"ExecStart={command}", "",
        "[Install]", "WantedBy=multi-user.target",
    ]  # fmt: skip
    remarks = [*_of_command(own), "the user of User= must be there"]
    return Lines(f"systemd: /etc/systemd/system/{name}@.service", lines, remarks)


def _for_systemd(text: str) -> str:
    """A text in which no % but that of ``%i`` has a meaning, systemd.unit(5)."""
    return text.replace("%", "%%").replace(f"%{_EACH}", _EACH)


def _compose(own: Advice, each: Mapping[str, Bound]) -> Lines:
    lines, needs = ["services:"], False
    for n, one in each.items():
        lines += [f"  {own.service}-{n}:", "    image: IMAGE"]
        if one.cpus is not None:
            lines.append(f"    cpuset: {json.dumps(one.cpus)}")
        policy = [word for word in one.numactl if not word.startswith("--physcpubind")]
        if one.memory.policy != "default":
            needs = True
            command = " ".join([*policy, own.program.replace(_EACH, n)]).replace("$", "$$")
            lines += ["    cap_add: [SYS_NICE]", f"    command: {json.dumps(command)}"]
        if own.environment:
            each_own = [one.replace(_EACH, n).replace("$", "$$") for one in own.environment]
            lines.append(f"    environment: {json.dumps(each_own)}")
    remark = (
        "compose has cpuset for CPUs and no key for the nodes of memory: numactl must be in the "
        "image, and its system call needs SYS_NICE; without both lines memory comes from the node "
        "of the CPUs only while that has room"
    )
    return Lines("docker: compose.yaml", lines, [remark] if needs else [])


def _haproxy(own: Advice, numbers: list[str]) -> Lines:
    lines = [
        "global", "    no numa-cpu-mapping", "",
        f"backend {own.service}", "    mode http", "    balance leastconn",
        *(f"    server {own.service}-{n} {own.address.replace(_EACH, n)}" for n in numbers),
    ]  # fmt: skip
    remarks = ["without the first two lines HAProxy 2.4 or newer binds itself to one node"]
    if own.address.startswith("unix@"):
        remarks.append("where haproxy.cfg has chroot, the sockets must lie in that directory")
        remarks.append("HAProxy's user must be able to write to the sockets")
    return Lines("HAProxy: haproxy.cfg", lines, remarks)
