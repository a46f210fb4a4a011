"""What the kernel counted in a guest, held against the pages that were placed there."""

import polars as pl
import pytest

from numalab import runs

PAGE = 4096


@pytest.fixture(scope="module")
def counted(numalab, guest):
    """The page-cache experiment's rows by case and metric: {point: value}."""
    numalab(
        "run", "page-cache", "--hosts", guest, "-p", "smoke", "--busy", "--allow-host-changes",
        "--no-notebook",
    )  # fmt: skip
    run = runs.load(numalab.run_of(guest, "page-cache"))
    rows = run.measurements.filter(
        (pl.col("grade") == "verified")
        & pl.col("value").is_not_null()
        & (pl.col("role") != "control")
    )
    found = {}
    for row in rows.iter_rows(named=True):
        case = run.plan.cell[row["cell"]].case.name
        found.setdefault((case, row["metric"]), {})[row["point"]] = row["value"]
    return found


def pages(counted, case, node=None):
    placed = counted[case, "placed"]
    return (sum(placed.values()) if node is None else placed[f"node {node}"]) / PAGE


def close(value, expected):
    return value == pytest.approx(expected, rel=0.05)


def woken(counted, case):
    """Pages that kswapd scanned: one trial decides nothing, and it may wake at any moment."""
    return counted[case, "pgscan_kswapd"][""]


def given_up(counted, case):
    """Pages of page cache that the full node lost."""
    full, kept = (counted[case, name] for name in ("filled_page_cache", "page_cache_kept"))
    return full["node 0"] * (1 - kept[""]) / PAGE


def test_an_empty_or_emptied_node_takes_all(counted):
    for case in ("empty", "dropped"):
        assert close(counted[case, "numa_hit"]["node 0"], pages(counted, case))
        assert pages(counted, case, 0) == pages(counted, case)
        assert sum(counted[case, "numa_miss"].values()) < 0.05 * pages(counted, case)


def test_a_full_node_spills_and_keeps_its_page_cache(counted):
    spilled = pages(counted, "full", 1)
    assert spilled + woken(counted, "full") > 0.85 * pages(counted, "full")
    assert close(counted["full", "numa_miss"]["node 1"], spilled)
    assert close(counted["full", "numa_foreign"]["node 0"], spilled)
    assert given_up(counted, "full") < 1.05 * woken(counted, "full") + 0.05 * spilled
    assert counted["full", "zone_reclaim_success"][""] == 0


def test_zone_reclaim_gives_up_what_it_scans_and_nothing_under_mglru(counted):
    assert pages(counted, "reclaim", 0) > 0.85 * pages(counted, "reclaim")
    lost = given_up(counted, "reclaim")
    assert lost > 0.5 * pages(counted, "reclaim")
    assert close(counted["reclaim", "pgscan_direct"][""] + woken(counted, "reclaim"), lost)
    assert counted["reclaim", "zone_reclaim_success"][""] > 0
    spilled = pages(counted, "reclaim-mglru", 1)
    assert spilled + woken(counted, "reclaim-mglru") > 0.85 * pages(counted, "reclaim-mglru")
    assert close(counted["reclaim-mglru", "numa_miss"]["node 1"], spilled)
    assert counted["reclaim-mglru", "zone_reclaim_success"][""] == 0
    assert counted["reclaim-mglru", "zone_reclaim_failed"][""] >= spilled
    assert counted["reclaim-mglru", "pgscan_direct"][""] == 0


def test_interleaving_hits_every_node_alike(counted):
    for node in ("node 0", "node 1"):
        assert close(counted["even", "interleave_hit"][node], pages(counted, "even") / 2)
