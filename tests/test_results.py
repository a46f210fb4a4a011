"""What is said of a run as Markdown."""

import gzip
import json
from types import SimpleNamespace

from numalab import results


def test_a_node_without_memory_in_a_look_counts_as_none_there(tmp_path):
    (tmp_path / "raw").mkdir()
    lines = []
    for trial, shares in enumerate(({"0": 1.0}, {"0": 0.5, "1": 0.5}, None), 1):
        proof = {"memory": {"shares": shares}, "cpus": {"seen": "0"}}
        name = f"raw/{trial}.placement.json.gz"
        (tmp_path / name).write_bytes(gzip.compress(json.dumps({"proofs": [proof]}).encode()))
        lines.append(
            {"schema": 1, "trial": trial, "cell": "unbound", "grade": "verified", "reason": None,
             "raw": {"placement": name}}
        )  # fmt: skip
    (tmp_path / "journal.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = SimpleNamespace(folder=tmp_path, cells={"unbound": {"label": "unbound"}})
    assert "node 0: 50.0% to 100.0%, node 1: 0.0% to 50.0%" in results.placement(run)
