"""What the kernel counted in the recorded page-cache runs, held against the pages it placed.

The same relations were found by hand in another guest (Linux 6.12, two nodes of 2 GB): a spilled
page is one miss there and one foreign here; direct reclaim scans as many pages as it frees; a
success of zone reclaim frees 32 pages in mode 1 and 64 in mode 7 with the multi-generational LRU.
"""

from pathlib import Path

import polars as pl
import pytest

from numalab import runs, store

ROOT = Path(__file__).resolve().parent.parent / "data" / "runs"
PAGE = 4096
# The emulated 16-node host's nodes are too small to be exact.
RUNS = [
    run for host in ("intel-2n", "amd-8n") for run in sorted((ROOT / host).glob("*-page-cache"))
]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: run.parent.name)
def counted(request):
    """Medians by case and metric, {point: value}; and the node that was filled."""
    run = runs.load(request.param)
    rows = store.derive(run)[0].filter(
        (pl.col("grade") == "verified")
        & pl.col("value").is_not_null()
        & (pl.col("role") != "control")
    )
    rows = rows.group_by("cell", "metric", "point").agg(pl.col("value").median())
    found = {}
    for cell, metric, point, value in rows.iter_rows():
        found.setdefault((run.plan.cell[cell].case.name, metric), {})[point] = value
    placed = found["empty", "placed"]
    return found, max(placed, key=placed.get)


def needs(found, case):
    """Skip what a run of a smaller profile has not measured."""
    if (case, "placed") not in found:
        pytest.skip(f"this run's profile leaves out the case {case}")


def close(value, expected):
    return value == pytest.approx(expected, rel=0.05)


def pages(found, case, node=None):
    placed = found[case, "placed"]
    return (sum(placed.values()) if node is None else placed[node]) / PAGE


def given_up(found, case, home):
    """Pages of page cache that the full node lost."""
    return found[case, "filled_page_cache"][home] / PAGE * (1 - found[case, "page_cache_kept"][""])


def test_there_is_a_run_of_two_nodes():
    assert "intel-2n" in {run.parent.name for run in RUNS}


@pytest.mark.parametrize("case", ["full", "reclaim-mglru", "preferred"])
def test_what_spills_is_missed_there_and_foreign_here(counted, case):
    found, home = counted
    needs(found, case)
    spilled = pages(found, case) - pages(found, case, home)
    assert spilled > 0.85 * pages(found, case)
    assert close(found[case, "numa_foreign"][home], spilled)
    misses = found[case, "numa_miss"]
    assert close(sum(misses.values()), spilled) and misses.get(home, 0) == 0
    assert found[case, "pgscan_direct"][""] == found[case, "zone_reclaim_success"][""] == 0


@pytest.mark.parametrize("case", ["empty", "dropped", "bound"])
def test_what_stays_home_hits(counted, case):
    found, home = counted
    needs(found, case)
    assert pages(found, case, home) == pages(found, case)
    assert close(found[case, "numa_hit"][home], pages(found, case))
    assert found[case, "numa_foreign"][home] == 0


@pytest.mark.parametrize(("case", "freed_at_once"), [("reclaim", 32), ("reclaim-7-mglru", 64)])
def test_zone_reclaim_scans_and_frees_what_is_then_placed(counted, case, freed_at_once):
    found, home = counted
    needs(found, case)
    freed = given_up(found, case, home)
    assert pages(found, case, home) > 0.95 * pages(found, case)
    assert close(found[case, "pgscan_direct"][""], freed)
    assert close(freed, pages(found, case, home))
    assert close(found[case, "zone_reclaim_success"][""] * freed_at_once, freed)


def test_under_mglru_zone_reclaim_only_fails(counted):
    found, home = counted
    spilled = pages(found, "reclaim-mglru") - pages(found, "reclaim-mglru", home)
    assert found["reclaim-mglru", "zone_reclaim_failed"][""] >= 0.95 * spilled


def test_a_bound_program_lets_kswapd_make_room(counted):
    found, home = counted
    needs(found, "bound")
    assert close(found["bound", "pgscan_kswapd"][""], given_up(found, "bound", home))
    assert found["bound", "pgscan_direct"][""] == 0


def test_interleaving_hits_every_node_alike(counted):
    found, _ = counted
    hits, placed = found["even", "interleave_hit"], found["even", "placed"]
    assert set(hits) >= set(placed)
    for node, size in placed.items():
        assert close(hits[node], size / PAGE)
