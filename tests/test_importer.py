"""Logs that somebody measured elsewhere become runs, and never more than unverified."""

import pytest

from numalab import check, runs
from numalab.agent.errors import Fault
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
    with pytest.raises(Fault, match="no parser recognises"):
        importer.import_logs([stray], "x", "latency", [], "")
    assert not (tmp_path / "runs").exists()


def test_only_descriptions_of_the_host_make_no_run(corpus, tmp_path):
    with pytest.raises(Fault, match="none of these files holds a measurement"):
        importer.import_logs([corpus / "lscpu/grace_1s.txt"], "x", "latency", [], "")


def test_results_of_two_tools_do_not_go_into_one_run(corpus):
    files = [corpus / "mlc/e5-2682v4_latency_only.txt", corpus / "stream/v5.10_2thr.txt"]
    with pytest.raises(Fault, match="several tools: mlc, stream"):
        importer.import_logs(files, "x", "latency", [], "")


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
