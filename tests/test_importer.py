"""Logs that somebody measured elsewhere become runs, and never more than unverified."""

import pytest
from typer.testing import CliRunner

from corpus import fixture
from numalab import check, cli, experiments, runs
from numalab.agent.errors import Fault, ParseError
from numalab.analysis import comparison
from numalab.logs import importer
from numalab.show import view as notebook


@pytest.fixture(autouse=True)
def runs_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMALAB_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def e5(corpus):
    """The published E5-2682 v4: its MLC log and its lscpu."""
    folder = importer.import_logs(
        [corpus / "mlc/e5-2682v4_latency_only.txt", corpus / "lscpu/xeon_e5-2682v4_2s.txt"],
        "e5-2682v4",
        "latency",
        [],
        "published",
    )
    return runs.load(folder)


def test_an_old_mlc_log_stands_as_a_run_with_its_matrix(e5):
    pairs = e5.node_pairs("idle_latency")
    found = {(row["cpu_nodes"], row["memory_nodes"]): row["value"] for row in pairs.to_dicts()}
    # The figures that were published with this log.
    assert found == {("0", "0"): 85.0, ("0", "1"): 136.3, ("1", "0"): 137.2, ("1", "1"): 84.2}
    assert set(pairs["grade"]) == {"unverified"} and set(pairs["tool"]) == {"mlc"}
    assert set(pairs["reason"]) == {"measured-elsewhere"}
    assert "by hand" in str(importer.ELSEWHERE)


def test_the_host_record_says_what_lscpu_said_and_no_more(e5):
    shape = e5.host.topology
    assert shape.model == "Intel(R) Xeon(R) CPU E5-2682 v4 @ 2.50GHz"
    assert shape.packages == 2 and shape.cores is None
    assert e5.host.before == {}
    assert (e5.manifest.status, e5.evidence) == ("imported", "published")


def test_it_passes_the_check_and_can_be_shown(e5):
    result = check.check(e5.folder)
    assert result.faults == []
    assert any("unverified" in warning for warning in result.warnings)
    view = notebook.View(e5)
    assert "E5-2682 v4" in view.about()
    assert not isinstance(view.matrix("idle_latency"), notebook.Text)


def test_a_file_that_no_parser_knows_is_refused(tmp_path):
    stray = tmp_path / "stray.txt"
    stray.write_text("nothing of the kind\n")
    with pytest.raises(Fault, match="no parser recognises.* what mlc, stream and sysbench print"):
        importer.import_logs([stray], "x", "latency", [], "")
    assert not (tmp_path / "runs").exists()


def test_only_descriptions_of_the_host_make_no_run(corpus, tmp_path):
    with pytest.raises(Fault, match="none of these files holds a measurement"):
        importer.import_logs([corpus / "lscpu/grace_1s.txt"], "x", "latency", [], "")


def test_results_of_two_tools_do_not_go_into_one_run(corpus):
    files = [corpus / "mlc/e5-2682v4_latency_only.txt", corpus / "stream/v5.10_2thr.txt"]
    with pytest.raises(Fault, match="several tools: mlc, stream"):
        importer.import_logs(files, "x", "latency", [], "")


STREAM = """STREAM version $Revision: 5.10 $
This system uses 8 bytes per array element.
Array size = 80000000 (elements), Offset = 0 (elements)
Function    Best Rate MB/s  Avg time     Min time     Max time
Copy:           60000.1     0.021500     0.021333     0.022000
Scale:          60001.2     0.021500     0.021333     0.022000
Add:            64000.3     0.030100     0.030000     0.031000
Triad:          64010.4     0.030100     0.029995     0.031000
"""
VALID = "Solution Validates: avg error less than 1.000000e-13 on all three arrays\n"


def log(folder, text, name="node0.txt"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_log_stands_for_the_experiment_that_asks_for_what_it_measured(tmp_path):
    path = log(tmp_path, STREAM + VALID)
    folder = importer.import_logs([path], "x", None, [], "")
    assert runs.load(folder).manifest.experiment == "stream"
    with pytest.raises(Fault, match="latency does not ask for what these logs of stream") as told:
        importer.import_logs([path], "x", "latency", [], "")
    assert "stream" in told.value.hint
    assert len(list((tmp_path / "runs" / "x").iterdir())) == 1


def test_a_log_of_sysbench_stands_only_for_its_own_test(tmp_path):
    with pytest.raises(Fault, match="no experiment asks for what these logs of sysbench"):
        text = fixture("sysbench-threads.txt")
        importer.import_logs([log(tmp_path, text)], "x", None, [], "")
    folder = importer.import_logs([log(tmp_path, fixture("sysbench-cpu.txt"))], "x", None, [], "")
    assert runs.load(folder).manifest.experiment == "sysbench-cpu"


def test_a_log_stands_for_the_first_of_several_experiments_and_says_so(tmp_path, monkeypatch):
    own = experiments.load("sysbench-cpu")
    another = own.model_copy(update={"name": "a-first-by-name", "priority": 0})
    known = {"a-first-by-name": another, "sysbench-cpu": own}
    monkeypatch.setattr(experiments, "names", lambda: list(known))
    monkeypatch.setattr(importer.experiments, "load", known.__getitem__)
    path = log(tmp_path, fixture("sysbench-cpu.txt"))
    told = CliRunner().invoke(cli.app, ["import", str(path), "--host", "x"]).output
    assert "it stands for the experiment sysbench-cpu" in told


def test_a_log_without_validation_says_so_in_the_import_and_in_check(tmp_path):
    path = log(tmp_path, STREAM)
    told = CliRunner().invoke(cli.app, ["import", str(path), "--host", "x"]).output
    assert "before STREAM says whether the solution validates" in told
    (folder,) = (tmp_path / "runs" / "x").iterdir()
    result = check.check(folder)
    assert result.faults == []
    assert any("did not validate" in warning for warning in result.warnings)
    assert runs.load(folder).tool_rows("triad")["value"].to_list() == [None]


def test_arrays_are_held_against_the_caches_that_lscpu_told(tmp_path):
    shape = "CPU(s): 4\nOn-line CPU(s) list: 0-3\nL3 cache: {} MiB (2 instances)\n"
    for size, code in ((8, []), (512, ["below-four-caches"])):
        files = [log(tmp_path, STREAM + VALID), log(tmp_path, shape.format(size), "lscpu.txt")]
        run = runs.load(importer.import_logs(files, f"x{size}", None, [], ""))
        assert [why.code for why in run.trials[0].warnings] == code
        assert check.check(run.folder).faults == []


def mlc(access, traffic):
    return (
        "Intel(R) Memory Latency Checker - v3.11\n"
        f"Measuring idle latencies for {access} access (in ns)...\n"
        "\t\tNuma node\nNuma node\t     0\t     1\t\n       0\t  81.0\t 140.1\t\n"
        "       1\t 140.0\t  81.1\t\n\nMeasuring Memory Bandwidths between nodes within system\n"
        f"Using {traffic} traffic type\n\t\tNuma node\nNuma node\t     0\t     1\t\n"
        "       0\t90000.0\t40000.1\t\n       1\t40000.0\t90000.1\t\n"
    )


def test_what_mlc_measured_in_another_way_is_never_compared(tmp_path):
    one = log(tmp_path, mlc("sequential", "Read-only"), "one.txt")
    two = log(tmp_path, mlc("random", "2:1 Read-Write"), "two.txt")
    first, second = (
        runs.load(importer.import_logs([path], path.stem, None, ["as it came"], ""))
        for path in (one, two)
    )
    found = comparison.compare(first, second)
    assert found.height == 16 and found["ratio"].is_null().all()
    assert {str(why) for why in found["reason"]} == {"only in a", "only in b"}
    again = runs.load(importer.import_logs([one], "again", None, ["as it came"], ""))
    alike = comparison.compare(first, again)
    assert "0-1 sequential" in alike["point"].to_list()


def test_a_matrix_is_of_one_way_of_access_and_the_point_chooses_it(tmp_path):
    files = [
        log(tmp_path, mlc(access, "Read-only"), f"{access}.txt")
        for access in ("random", "sequential")
    ]
    run = runs.load(importer.import_logs(files, "x", None, [], ""))
    assert set(run.node_pairs("idle_latency")["point"]) == {"random", "sequential"}
    view = notebook.View(run)
    assert "random, sequential" in str(view.matrix("idle_latency"))
    assert not isinstance(view.matrix("idle_latency", "random"), notebook.Text)


NUMACTL = """available: 2 nodes (0-1)
node 0 cpus: 0 1
node 0 size: 64000 MB
node 0 free: 60000 MB
node 1 cpus:{}
node 1 size: 64000 MB
node 1 free: 60000 MB
node distances:
node   0   1
  0:  10  20
  1:  20  10
"""


def test_a_lone_matrix_without_a_row_is_whole_where_its_node_has_no_cpus(tmp_path):
    whole = mlc("sequential", "Read-only")
    lone = log(tmp_path, whole[: whole.index("       1\t 140.0")], "lone.txt")
    with pytest.raises(ParseError, match="no row of node 1.*numactl --hardware"):
        importer.import_logs([lone], "cxl", None, [], "")
    cut = log(tmp_path, NUMACTL.format(" 2 3"), "numactl.txt")
    with pytest.raises(ParseError, match="no row of node 1"):
        importer.import_logs([lone, cut], "cxl", None, [], "")
    cxl = log(tmp_path, NUMACTL.format(""), "numactl.txt")
    run = runs.load(importer.import_logs([lone, cxl], "cxl", None, [], ""))
    assert run.tool_rows("idle_latency")["value"].to_list() == [81.0, 140.1]
    assert check.check(run.folder).faults == []


def test_core_to_core_latencies_of_mlc_need_no_name_of_an_experiment(corpus):
    folder = importer.import_logs([corpus / "mlc/clx_c2c.txt"], "clx", None, [], "")
    assert runs.load(folder).manifest.experiment == "core-to-core"
    assert check.check(folder).faults == []


def test_cells_are_named_one_for_each_measurement(corpus):
    files = [corpus / "stream/v5.10_2thr.txt", corpus / "stream/v5.10_32thr.txt"]
    with pytest.raises(Fault, match="1 cells are named for 2 measurements"):
        importer.import_logs(files, "x", "stream", ["only one"], "")
    folder = importer.import_logs(files, "x", "stream", ["two threads", "32 threads"], "")
    rows = runs.load(folder).tool_rows("triad")
    assert rows["label"].to_list() == ["two threads", "32 threads"]


@pytest.mark.parametrize("host", ["", ".", "..", "../x", "a/b", ".hidden", "two words"])
def test_a_host_that_names_no_folder_of_its_own_is_refused(corpus, tmp_path, host):
    with pytest.raises(Fault, match="cannot name a host"):
        importer.import_logs([corpus / "mlc/clx_c2c.txt"], host, "core-to-core", [], "")
    assert not (tmp_path / "runs").exists() and list(tmp_path.iterdir()) == []
