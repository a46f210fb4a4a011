"""What others published of real machines: read, put into ratios, counted.

The rows are those of data/reference/machines.csv and published.csv, whose columns schema.json and
whose doubts README.md there describe. hearsay.csv is never read: nobody can follow its sources.
Every row is ``unverified``: nobody here saw it measured.

A ratio is within one machine in one mode, one version of one named tool, one way of access and
one number of threads. Claims count machines, never rows: a machine's value is the median over its
settings and runs, in its firmware's default mode where that was measured, else over its modes. An
interval says how sure the count is if these machines were drawn by
chance from all such machines. They were not: they are those of which somebody published figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
from scipy import stats

from .. import experiments, home
from ..agent.contract import ERROR, MEASURED, UNVERIFIED
from ..agent.errors import Fault
from . import claims, evidence
from .claims.ratio import Ratio

if TYPE_CHECKING:
    from ..runs import Run

FILES = ("machines.csv", "published.csv")
EXACT = "exact from tool output"  # a row's quality: its number is as a tool printed it
LATENCY, BANDWIDTH = "latency", "bandwidth"
OTHER, SAME = "remote-socket", "remote-same-socket"  # classes of memory, against "local"
WITHOUT_CPUS = ("cxl", "hbm")
RANDOM, CACHED = "random", "partly cached"  # of the column ``access``
# Of ``load``, how many threads of a node read:
ONE, SOME, WHOLE = "one thread", "some threads", "the whole node"
UNSTATED = "threads not stated"

_TYPES = {"string": pl.String(), "integer": pl.Int64(), "number": pl.Float64(), "date": pl.Date()}
_ALIKE = [
    "machine", "machine_id", "vendor", "processor", "microarchitecture", "year", "node_mode",
    "tool", "tool_version", "access", "load", "metric", "unit",
]  # fmt: skip
_MACHINE = ["machine", "vendor", "processor", "microarchitecture", "year", "tool", "access", "load"]
_RATED = r"^read bandwidth$|(?i)triad$"
_CLAIMED = {"idle_latency": LATENCY, "triad": BANDWIDTH}  # what our metrics are in the survey
_CLASSES = {"remote": (OTHER,), "memory-only": WITHOUT_CPUS}


# --- the rows -------------------------------------------------------------------------------------


@cache
def load(files: tuple[str, ...] = FILES) -> pl.DataFrame:
    """Return every row that a reader can follow, with ``year`` and ``grade``.

    published.csv alone holds what the study's own sources say. Columns: those of schema.json, then
    ``year`` (of the microarchitecture's first product, null where we do not know it) and ``grade``,
    which is ``unverified`` throughout. Raises Fault for a table that does not fit.
    """
    folder = home.root() / "data" / "reference"
    fields = json.loads((folder / "schema.json").read_text(encoding="utf-8"))["fields"]
    schema = {field["name"]: _TYPES[field["type"]] for field in fields}
    try:
        rows = pl.concat([pl.read_csv(folder / name, schema=schema) for name in files])
    except pl.exceptions.PolarsError as error:
        why = str(error).partition("\n")[0]
        raise Fault(
            f"{folder} holds a table that cannot be read: {why}",
            "pytest tests/test_survey.py names the row and the column",
        ) from None
    years = pl.read_csv(folder / "microarchitectures.csv").select("microarchitecture", "year")
    years = years.with_columns(pl.col("year").cast(pl.Int64))
    return rows.join(years, on="microarchitecture", how="left", maintain_order="left").with_columns(
        grade=pl.lit(UNVERIFIED)
    )


def ratios(rows: pl.DataFrame, what: str) -> pl.DataFrame:
    """Return what farther memory costs against local memory, a row for each class of it.

    ``what`` is LATENCY (idle, in ns) or BANDWIDTH (reads or triad). Columns: the machine, its mode
    and tool, ``class`` (OTHER, SAME, ``cxl``, ``hbm``), ``local`` and ``value`` (medians over the
    cells of a class), ``ratio`` and ``price`` (value minus local). Rows without a named tool are
    left out: nobody knows whether they are of one. Those of an unknown socket are, too.
    """
    if what == LATENCY:
        chosen = (pl.col("experiment") == "idle-latency") & (pl.col("unit") == "ns")
    else:
        chosen = pl.col("experiment").is_in(["bandwidth", "stream"]) & pl.col(
            "metric"
        ).str.contains(_RATED)
    threads = pl.col("threads").str.to_integer(strict=False)
    load = (
        pl.when(threads == 1).then(pl.lit(ONE)).when(threads > 1).then(pl.lit(SOME))
        .when(pl.col("threads").is_null()).then(pl.lit(UNSTATED)).otherwise(pl.lit(WHOLE))
    )  # fmt: skip
    medians = (
        rows.filter(chosen & pl.col("tool").is_not_null())
        .with_columns(load=load)
        .group_by(*_ALIKE, "threads", "class", maintain_order=True)
        .agg(pl.col("value").median())
    )
    keys = [*_ALIKE, "threads"]
    local = medians.filter(pl.col("class") == "local").select(*keys, local="value")
    far = medians.filter(pl.col("class").is_in([OTHER, SAME, *WITHOUT_CPUS]))
    return far.join(local, on=keys, nulls_equal=True, maintain_order="left").with_columns(
        ratio=pl.col("value") / pl.col("local"), price=pl.col("value") - pl.col("local")
    )


def machines(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one row per machine, tool and class of ``ratios``: medians over runs.

    They are of the firmware's default mode where it was measured, else over all modes.
    """
    figures = (pl.col(name).median() for name in ("local", "value", "ratio", "price"))
    keys = [*_MACHINE, "class"]
    return _as_delivered(frame, keys).group_by(keys, maintain_order=True).agg(*figures)


def counted(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what a claim counts of ``ratios``: one row per machine and class.

    Latencies of a buffer that is partly cached are left out, and bandwidths by fewer threads than
    a node has: one thread waits for latency.
    """
    latency = pl.col("unit") == "ns"
    keys = ["machine", "vendor", "microarchitecture", "year", "class"]
    counting = frame.filter(
        (latency & pl.col("access").ne_missing(CACHED)) | (~latency & (pl.col("load") == WHOLE))
    )
    return (
        _as_delivered(counting, keys)
        .group_by(keys, maintain_order=True)
        .agg(pl.col("ratio").median(), pl.col("price").median())
    )


def _as_delivered(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows of the firmware's default mode; of what lacks them, all rows."""
    default = pl.col("node_mode").eq_missing("default")
    return frame.filter(default | ~default.any().over(keys))


def by_microarchitecture(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what the other socket costs, a row per microarchitecture, the oldest first.

    Columns: ``machines`` whose latencies count, medians over them of ``ratio``, ``price`` (ns) and
    ``bandwidth`` (of the local one), ``least`` and ``most`` of the ratio.
    """
    ratio = pl.col("ratio")
    latency = counted(ratios(rows, LATENCY)).filter(pl.col("class") == OTHER)
    bandwidth = counted(ratios(rows, BANDWIDTH)).filter(pl.col("class") == OTHER)
    kind = ["microarchitecture", "year"]
    return (
        latency.group_by(kind)
        .agg(
            machines=pl.len(), ratio=ratio.median(), least=ratio.min(), most=ratio.max(),
            price=pl.col("price").median(),
        )
        .join(
            bandwidth.group_by(kind).agg(bandwidth=ratio.median()), on=kind, how="left",
            nulls_equal=True,
        )
        .sort("year", "microarchitecture", nulls_last=True)
    )  # fmt: skip


# --- claims, counted over machines ----------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """On how many machines a claim holds; the share with its interval, the median with its own.

    The share's interval is Wilson's (JASA 22, 1927), at 95 %; the median's is by order statistics,
    and None for fewer than 6 machines.
    """

    claim: str
    says: str
    source: str
    what: str  # LATENCY or BANDWIDTH
    bound: float
    asked: str
    holds: int
    of: int
    share: tuple[float, float]
    median: float | None
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Whether it is shown to be so on most machines, on few, or neither."""
        if not self.of:
            return "nothing published"
        low, high = self.share
        return "true of most" if low > 0.5 else "true of few" if high < 0.5 else "undecided"

    def __str__(self) -> str:
        if not self.of or self.median is None:
            return f"{self.says}: no machine whose source can be followed was measured so"
        low, high = self.share
        within = f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]" if self.interval else ""
        return (
            f"{self.says} ({self.asked}): {self.holds} of {self.of} published machines "
            f"({low:.0%} to {high:.0%}), median {self.median:.2f}{within}"
        )


def counts(rows: pl.DataFrame | None = None) -> list[Count]:
    """Return the claims of experiments/latency.yml and stream.yml, counted over the survey.

    Their thresholds are those of the files: a claim has one everywhere.
    """
    rows = load() if rows is None else rows
    found = []
    for name in ("latency", "stream"):
        for claim in claims.load(experiments.load(name).claims):
            forms = [form for form in claim.holds_if if isinstance(form, Ratio)]
            if len(forms) == len(claim.holds_if) == 1 and _countable(forms[0]):
                found.append(_count(claim, forms[0], rows))
    return found


def _countable(form: Ratio) -> bool:
    return form.metric in _CLAIMED and form.cell in _CLASSES and form.against == "local"


def _count(claim: claims.Claim, form: Ratio, rows: pl.DataFrame) -> Count:
    least, most = form.bounds
    frame = counted(ratios(rows, _CLAIMED[form.metric]))
    values = frame.filter(pl.col("class").is_in(_CLASSES[form.cell]))["ratio"].to_list()
    held = [(least is None or v >= least) and (most is None or v <= most) for v in values]
    bound, asked = (most, "at most") if least is None else (least, "at least")
    what = _CLAIMED[form.metric]
    return Count(
        claim.id, claim.says, claim.source, what, bound or 0, f"{asked} {bound:g}",
        *tally(values, held),
    )  # fmt: skip


def tally(values: Sequence[float], held: Sequence[bool]) -> tuple[int, int, Any, Any, Any]:
    """Return how many hold, of how many, the share's interval, the median and its interval."""
    if not values:
        return 0, 0, (0.0, 1.0), None, None
    share = stats.binomtest(sum(held), len(values)).proportion_ci(method="wilson")
    ends = evidence.median_interval(values)
    return sum(held), len(values), (share.low, share.high), median(values), ends and ends[:2]


# --- a host of the user's own ---------------------------------------------------------------------


@dataclass(frozen=True)
class Own:
    """A measured host's median latencies: local, and by class; the probe's random chase."""

    host: str
    local: float
    far: dict[str, float]

    def ratio(self, kind: str) -> float | None:
        """Return what a class of memory costs here against local memory, if it was measured."""
        return self.far[kind] / self.local if kind in self.far else None


def own(run: Run) -> Own | None:
    """Return what a run says of its host's memory; None where it can be compared with nothing.

    An emulated host has no place among machines, whatever its times are made of; nor has a tool
    other than the probe, which alone is known to chase at random.
    """
    if run.host.emulated or run.evidence != MEASURED:
        return None
    rows = run.node_pairs("idle_latency").filter(
        (pl.col("tool") == "probe") & (pl.col("grade") != ERROR) & pl.col("value").is_not_null()
    )
    if rows.is_empty():
        return None
    sockets = {cpu.node: cpu.package for cpu in run.host.topology.cpus}
    found: dict[str, list[float]] = {}
    for cpu, memory, value in rows.select("cpu_nodes", "memory_nodes", "value").iter_rows():
        at = [sockets.get(int(node)) for node in (cpu, memory)]
        if cpu != memory and None in at:
            continue  # memory without CPUs, or a socket that the kernel does not tell
        kind = "local" if cpu == memory else SAME if at[0] == at[1] else OTHER
        found.setdefault(kind, []).append(value)
    medians = {kind: median(values) for kind, values in found.items()}
    local = medians.pop("local", None)
    return Own(run.manifest.host, local, medians) if local else None


def position(run: Run) -> str | None:
    """Return where a host stands among published machines, in a line; None without a comparison.

    Compared are random chases by named tools alone.
    """
    here = own(run)
    if here is None:
        return None
    for kind, words in ((OTHER, "the other socket's memory"), (SAME, "another node's memory")):
        ratio = here.ratio(kind)
        frame = ratios(load(), LATENCY).filter(
            (pl.col("access") == RANDOM) & (pl.col("class") == kind)
        )
        if ratio is not None and not frame.is_empty():
            many = frame["machine"].n_unique()
            tools = " and ".join(sorted(frame["tool"].unique()))
            place = _between(ratio, frame)
            return (
                f"your host: {words} costs {ratio:.2f} × local, {place} "
                f"of {many} published machines (random chase, {tools}; not verified here)"
            )
    return None


def _between(ratio: float, frame: pl.DataFrame) -> str:
    """Where a ratio stands among the medians of the microarchitectures."""
    kinds = counted(frame).group_by("microarchitecture").agg(pl.col("ratio").median())
    named = [
        (value, f"{name} ({value:.2f})")
        for name, value in kinds.iter_rows()
        if not name.startswith("not stated")
    ]
    below = max((one for one in named if one[0] <= ratio), default=None)
    above = min((one for one in named if one[0] > ratio), default=None)
    if below and above:
        return f"between {below[1]} and {above[1]}"
    return f"above {below[1]}, the highest" if below else f"below {above[1]}, the lowest"  # type: ignore[index]


# --- other tables of the survey -------------------------------------------------------------------


def core_to_core(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the median one-way latency (ns) per machine and class of a pair of cores.

    Classes: ``SMT sibling``, ``same socket``, ``other socket``; tools that time a shared line
    bouncing between two cores. Where a tool saw two groups in one socket the median of both
    counts: on which node the line lies is not known (README.md, weakness 6).
    """
    kind = (
        pl.when(pl.col("class") == "smt-sibling")
        .then(pl.lit("SMT sibling"))
        .when(pl.col("class").str.starts_with("same-socket"))
        .then(pl.lit("same socket"))
        .when(pl.col("class") == OTHER)
        .then(pl.lit("other socket"))
    )
    return (
        rows.filter(pl.col("metric") == "one-way core-to-core latency, median")
        .with_columns(pair=kind)
        .filter(pl.col("pair").is_not_null())
        .group_by("machine", "microarchitecture", "year", "tool", "pair", maintain_order=True)
        .agg(pl.col("value").median())
    )


def loaded(rows: pl.DataFrame) -> pl.DataFrame:
    """Return latency under load: a row per machine mode and injection delay, median over runs.

    Columns ``latency`` (ns), ``bandwidth`` (GB/s) and ``share`` of that mode's largest bandwidth.
    """
    parts = pl.col("metric").str.extract_groups(r"^(latency|bandwidth) at inject delay (\d+)$")
    points = (
        rows.filter(pl.col("experiment") == "loaded-latency")
        .with_columns(what=parts.struct[0], delay=parts.struct[1])
        .filter(pl.col("what").is_not_null())
        .pivot(
            on="what",
            index=["machine_id", "processor", "microarchitecture", "year", "delay"],
            values="value",
            aggregate_function="median",
        )
    )
    return points.with_columns(bandwidth=pl.col("bandwidth") / 1000).with_columns(
        share=pl.col("bandwidth") / pl.col("bandwidth").max().over("machine_id")
    )


# What a source calls a binding: our word for it, and whether the others are compared with it.
_BINDINGS = {
    "default": ("default", True),
    "no policy": ("default", True),
    "no affinity": ("default", True),
    "one instance over all nodes": ("default", True),
    "cpus 0-31": ("half of each node", True),
    "nodes 0": ("one node", True),
    "local": ("local", True),
    "remote": ("remote", False),
    "interleaved": ("interleave", False),
    "interleaved-memory": ("interleave", False),
    "balancing": ("NUMA balancing", False),
    "numa-balancing": ("NUMA balancing", False),
    "imbalanced": ("memory on one node", False),
    "imbalanced-memory": ("memory on one node", False),
    "llama.cpp distribute": ("spread by the program", False),
    "NUMA affinity": ("bound by the program", False),
    "one bound instance per node": ("an instance per node", False),
    "cpus 0-15,32-47": ("one whole node", False),
    "nodes 0-3": ("all nodes", False),
}
_WORKLOADS = {"mysql-point-select": "MySQL point-select", "service-per-node": "an office system"}


def servers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what a binding did to a workload's rate: a row per machine, workload and binding.

    Columns ``workload``, ``machine``, ``against`` (the binding it is compared with), ``binding``
    and ``ratio`` of the rates (above 1: better than that). Only rates within one setting of one
    source are compared.
    """
    words = {name: word for name, (word, _) in _BINDINGS.items()}
    bases = [word for word, base in _BINDINGS.values() if base]
    named = [
        pl.when(pl.col(name).is_in(list(words))).then(pl.col(name).replace(words))
        for name in ("mem_node", "cpu_node", "class")
    ]
    keys = ["machine", "processor", "microarchitecture", "workload", "tool", "setting"]
    rates = (
        rows.filter(
            (pl.col("experiment") == "server")
            & pl.col("unit").str.contains(r"/s$|^NOPM$")
            & ~pl.col("metric").str.contains("interconnect")
        )
        .with_columns(
            binding=pl.coalesce(named),
            workload=pl.col("metric")
            .str.replace(r"(, mean)? rate$|: (qps|throughput)$", "")
            .replace(_WORKLOADS),
            setting=pl.col("notes").str.extract(r"(setting \S+|huge pages \w+)"),
        )
        .filter(pl.col("binding").is_not_null())
        .group_by(*keys, "binding", maintain_order=True)
        .agg(pl.col("value").median())
    )
    base = rates.filter(pl.col("binding").is_in(bases)).select(
        *keys, against="binding", base="value"
    )
    return (
        rates.join(base, on=keys, nulls_equal=True, maintain_order="left")
        .filter(pl.col("binding") != pl.col("against"))
        .with_columns(ratio=pl.col("value") / pl.col("base"))
    )


def distances(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what the firmware says of a pair of nodes beside what a tool measured there.

    Columns ``said`` (the distance over that of a node to itself) and ``ratio`` (the latency over
    the local one), per machine mode, pair of nodes and tool.
    """
    keys = ["machine_id", "cpu_node", "mem_node"]
    said = rows.filter(pl.col("experiment") == "distance").select(*keys, said=pl.col("value") / 10)
    idle = rows.filter((pl.col("experiment") == "idle-latency") & pl.col("tool").is_not_null())
    tool = ["machine_id", "tool", "tool_version", "metric"]
    local = (
        idle.filter(pl.col("class") == "local")
        .group_by(tool, maintain_order=True)
        .agg(local=pl.col("value").median())
    )
    return (
        idle.filter(pl.col("class") != "local")
        .join(local, on=tool, nulls_equal=True, maintain_order="left")
        .join(said, on=keys, maintain_order="left")
        .with_columns(ratio=pl.col("value") / pl.col("local"))
        .select(*keys, "processor", "microarchitecture", "tool", "class", "said", "ratio")
    )
