"""A real MySQL server on two nodes: what its own interleaving does to a binding is seen."""

import json
import shutil


def test_a_pool_that_innodb_interleaves_against_its_binding_is_caught(numalab, checkout):
    """MySQL 8.4 and newer do so by default, whatever numactl was told."""
    numalab("lab", "up", "test-one")
    numalab(
        "run", "mysql-binding", "--hosts", "test-one", "-p", "smoke", "-b", "local:0",
        "--set", "innodb_numa_interleave=ON", "--no-collectors", "--no-notebook", status=2,
    )  # fmt: skip
    (folder,) = (checkout / "runs" / "test-one").glob("*-mysql-binding")
    records = [json.loads(line) for line in (folder / "journal.ndjson").open()]
    assert len(records) == 2 and {record["grade"] for record in records} == {"error"}
    for record in records:
        assert "MySQL 9" in record["tool"]["version"]
        assert "on node 1, not 0" in record["reason"]
    shutil.rmtree(folder)  # the next tests judge all runs that they find
