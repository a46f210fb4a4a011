"""Is what was configured of an emulated host's memory found again in a database server's speed?

    bench/known.py [PART …]        measure these parts (all of them) in guests of the lab
    bench/known.py --of RUN …      look at runs that are there

Each part is an experiment of bench/known, on a host of the lab whose memory timing is configured.
From the run, each cell is set against its baseline:

- *counted*: the change of time per query that the model's counters ask for. It is the change of
  the time for which CPUs waited for memory, per instruction, at the baseline's instructions.
- *equal*: the change of the time that passed meanwhile by the guest's own clock, at the baseline's
  instructions. It should be within a tenth of what was counted, and three thousandths of the time:
  what six blocks leave of the noise.
- *found*: the change of time per query that the client measured. A query takes more instructions in
  some trials than in others, and where it is slower it has more of the clock's ticks in it.
- *again*: how far *equal* differs between three repetitions of two blocks each: 1 % at most. (In
  brackets: as the client found it.)
- *judged*: what the judge says, by the smallest effect that the run can see. What was counted and
  is greater must be found; where nothing was planted nothing must be.

Serial emulation is slow. On a machine of two cores, both busy, a trial takes 35 to 45 s: "planted"
(42 trials) 40 minutes, "server" 20, "shown" and "hidden" 10 each, "cores" (42) two hours. A guest
is the machine's, not the folder's: two parts on one host cannot be measured at the same time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import polars as pl

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from numalab import home, runs, store  # noqa: E402
from numalab.agent import cpulist, drivers  # noqa: E402
from numalab.agent.contract import CONTROL, VERIFIED, Cell, TrialRecord  # noqa: E402
from numalab.agent.errors import Fault  # noqa: E402
from numalab.analysis import claims, judge  # noqa: E402
from numalab.lab import guests, ssh  # noqa: E402

METRIC = "queries_per_second"
AGAIN, WITHIN, ROUNDING = 0.01, 0.10, 0.003
REPETITIONS = 3


class Part(NamedTuple):
    """An experiment of bench/known, its profile, and the host that it is measured on."""

    experiment: str
    profile: str
    host: str
    beside: str = ""  # a part that it is compared with, cell by cell


PARTS = {
    "server": Part("server", "point-select", "slow-2n-timed"),
    "planted": Part("planted", "point-select", "planted-6n-timed"),
    "three": Part("planted", "three", "planted-6n-timed"),  # of 0, 2 and 5 %: half as long
    "cores": Part("cores", "point-select", "slow-20c-timed"),
    "shown": Part("hidden", "point-select", "slow-2n-timed"),
    "hidden": Part("hidden", "point-select", "slow-2n-hidden-timed", beside="shown"),
    "mysql": Part("server", "mysql", "slow-2n-timed"),
    "writes": Part("writes", "read-write", "slow-2n-timed"),
}


class Cost(NamedTuple):
    """What a query took in one trial, of all CPUs together; times in ns."""

    time: float  # of a client's, or of a CPU where clients wait for CPUs; as the client says
    passed: float  # by the guest's clock, while the model counted: what the client does to end, too
    instructions: float
    stall: float  # CPUs waited for memory
    remote: float  # share of the lines that came from another node

    def each(self) -> float:
        """Return the time that an instruction took, all in all."""
        return self.passed / self.instructions


def cost(run: runs.Run, trial: TrialRecord) -> Cost:
    """Return what a trial's client and the model's counters say of a query."""
    records = drivers.driver(run.plan.tool.name).parse(
        store.read_raw(run.folder, trial.raw["stdout"])
    )
    (per_second,) = [
        float(one["value"])
        for one in records
        if one["kind"] == "result" and one.get("name") == METRIC and "checkpoint_s" not in one
    ]
    (client,) = [one for one in records if one["kind"] == "run"]
    cell = run.cells[trial.cell]
    counted, queries = client["model"], per_second * cell.options["time_s"]
    at_once = min(client["clients"], len(cpulist.parse(cell.cpus or "")))
    return Cost(
        time=at_once * 1e9 / per_second,
        passed=at_once * 1e9 * client["elapsed_s"] / queries,
        instructions=counted["instructions"] / queries,
        stall=counted["stall_ps"] / 1000 / queries,
        remote=counted["far_bytes"] / (counted["near_bytes"] + counted["far_bytes"]),
    )


Costs = dict[str, dict[int, Cost]]  # by cell and block


def costs_of(run: runs.Run) -> Costs:
    """Return the costs of a run's verified trials; say which are not."""
    found: Costs = defaultdict(dict)
    for trial in run.trials:
        if trial.grade == VERIFIED:
            found[trial.cell][trial.block] = cost(run, trial)
        else:
            print(f"  trial {trial.trial}, {trial.cell}, is left out: {trial.reason}")
    return found


def mean(costs: Iterable[Cost]) -> Cost:
    """Return the geometric means."""
    return Cost(*(statistics.geometric_mean(max(v, 1e-9) for v in each) for each in zip(*costs)))


def look(run: runs.Run, beside: runs.Run | None = None) -> bool:
    """Print what was found of what was counted; tell whether all of it holds.

    With ``beside``, a run of the same cells on another host, its cells are the baselines.
    """
    print(f"\n{run.name} on {run.manifest.host}: {run.server}, {len(run.trials)} trials")
    costs = costs_of(run)
    others = costs_of(beside) if beside else costs
    (sight,) = [one for one in judge.sights(run) if one.metric == METRIC]
    for said in judge.foresee(run.plan):
        print(f"  the plan said: {said}")
    print(f"  as it was: {sight}")
    holds = len(run.trials) == sum(len(blocks) for blocks in costs.values())
    for cell in run.plan.cells:
        own = mean(costs[cell.id].values())
        words = (
            f"  {cell.id:22} {own.time / 1000:6.1f} us a query  {own.instructions / 1000:5.1f} k "
            f"instructions  {own.stall / 1000:6.1f} us stall  {own.remote:4.0%} remote"
        )
        base = cell.id if beside else base_of(cell)
        if base in others and (beside or base != cell.id):
            judged = (
                across(run, beside, cell.id)
                if beside
                else judge.of(run.measurements, run.plan, METRIC).compare(cell.id, base)
            )
            is_control = cell.role == CONTROL and not beside
            held, said = compare(costs[cell.id], others[base], judged, sight.smallest, is_control)
            holds &= held
            words += said
        print(words)
    for one in claims.judge_all(run.experiment.claims, run):
        print(f"  claim {one.claim}: {one.verdict}")
    return holds


def base_of(cell: Cell) -> str:
    """Return the cell that a cell is compared with: of spread cores as many packed ones."""
    if cell.id.endswith("-spread"):
        return cell.id.replace("-spread", "-packed")
    return "" if cell.id.endswith("-packed") else cell.baseline or ""


def across(run: runs.Run, beside: runs.Run, cell: str) -> judge.Effect:
    """Return what two runs say of one cell."""
    values = [
        one.tool_rows(METRIC).filter(pl.col("cell") == cell)["value"].to_list()
        for one in (run, beside)
    ]
    judges = [judge.of(one.measurements, one.plan, METRIC) for one in (run, beside)]
    return judge.across(values[0], values[1], (judges[0], judges[1]), tried=1)


def compare(
    mine: dict[int, Cost],
    base: dict[int, Cost],
    judged: judge.Effect,
    smallest: float | None,
    is_control: bool,
) -> tuple[bool, str]:
    """Return whether a cell is as it must be against its baseline, and words for that."""
    both = sorted(set(mine) & set(base))
    one, other = (mean(of[block] for block in both) for of in (mine, base))
    counted = one.stall / one.instructions - other.stall / other.instructions
    counted *= other.instructions / other.passed
    took = one.time / other.time - 1
    equal = one.each() / other.each() - 1
    again, as_found = (
        _apart([of(mine[block]) / of(base[block]) for block in both])
        for of in (Cost.each, lambda cost: cost.time)
    )
    words = f"  counted {counted:+.2%}  equal {equal:+.2%}  found {took:+.2%}"
    words += f"  again {again:.2%} ({as_found:.2%})  {judged.decision}"
    missed = []
    if again > AGAIN:
        missed.append("repetitions differ")
    if not is_control:
        if abs(equal - counted) > WITHIN * abs(counted) + ROUNDING:
            missed.append("not what was counted")
        if smallest is not None and abs(counted) > smallest and not judged.different:
            missed.append("not seen")
        if abs(counted) < ROUNDING and judged.different:
            missed.append("seen, and not there")
    return not missed, words + (f"  MISSED: {', '.join(missed)}" if missed else "")


def _apart(ratios: list[float]) -> float:
    """Return by how much the greatest mean of a repetition is above the smallest."""
    each = max(1, len(ratios) // REPETITIONS)
    starts = range(0, len(ratios), each)
    means = [statistics.geometric_mean(ratios[at : at + each]) for at in starts]
    return max(means) / min(means) - 1


def measure(part: Part) -> runs.Run:
    """Measure one part in a guest, which is ended then; return its run.

    Nobody looks at the guest meanwhile: its one CPU would need seconds of the model to answer.
    """
    numalab = [sys.executable, "-m", "numalab.cli"]
    file = HERE / "known" / f"{part.experiment}.yml"
    asked = [*numalab, "plan", str(file), "-p", part.profile, "--host", part.host, "--request"]
    request = subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{part.experiment}"
    kept = home.runs() / part.host
    kept.mkdir(parents=True, exist_ok=True)
    guest = guests.up(part.host, print)

    def there(command: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            ssh.command(guest.port, command), input=given, stdout=subprocess.PIPE, check=True
        )
        return done.stdout

    try:
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "numalab.pyz"
            subprocess.run([*numalab, "agent", str(agent)], check=True)
            there("cat >numalab.pyz", agent.read_bytes())
            there("cat >request.json", request)
            there("python3 numalab.pyz plan request.json >plan.json")
            there(f"python3 numalab.pyz run --plan plan.json --out {name} --busy >said.txt 2>&1")
            subprocess.run(
                ["tar", "xz", "-C", str(kept)], input=there(f"tar cz {name}"), check=True
            )
    finally:
        guests.down(part.host, print)
    (kept / name / store.EXPERIMENT).write_bytes(file.read_bytes())
    subprocess.run([*numalab, "check", "--rebuild", str(kept / name)], check=True)
    return runs.load(kept / name)


def main() -> int:
    """Measure or look; return 1 where something was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--of", nargs="+", default=[], metavar="RUN", help="runs to look at")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: known are {', '.join(PARTS)}")
    if given.of:
        found = [look(runs.load(Path(one))) for one in given.of]
    else:
        made: dict[str, runs.Run] = {}
        found = []
        for name in given.parts or (one for one in PARTS if one != "three"):
            print(f"\n{name}, from {time.strftime('%H:%M')}", flush=True)
            try:
                made[name] = measure(PARTS[name])
                found.append(look(made[name], made.get(PARTS[name].beside)))
            except (Fault, subprocess.CalledProcessError) as error:
                print(f"  {name} was not measured: {error}")
                found.append(False)
    return not all(found)


if __name__ == "__main__":
    sys.exit(main())
