"""A wait of the tests ends when nothing more can come, and not because it took long."""

import subprocess

import pytest

import waiting


def command(script):
    return subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_what_comes_is_returned_however_long_it_progressed():
    seen = []
    found = waiting.wait_for(
        lambda: len(seen) > 20 and "it", progress=lambda: seen.append(1) or len(seen), silent_s=0.1
    )
    assert found == "it"


def test_it_ends_with_whoever_should_bring_it_or_when_nothing_happens():
    gone = command("exit 4")
    with pytest.raises(waiting.Stuck, match="it has ended .4. .*\n.*last words"):
        waiting.wait_for(lambda: False, gone, tells=lambda: "its last words")
    with pytest.raises(waiting.Stuck, match=f"process {gone.pid} has ended"):
        waiting.wait_for(lambda: False, gone.pid)
    with pytest.raises(waiting.Stuck, match="nothing happened for 0.1 s"):
        waiting.wait_for(lambda: False, progress=lambda: "always this", silent_s=0.1)


def test_a_command_is_followed_to_its_end():
    talking = command("echo one; echo two >&2; exit 3")
    assert waiting.follow(talking) == ("one\n", "two\n") and talking.returncode == 3
    silent = command("exec sleep 3600")
    with pytest.raises(waiting.Stuck, match="nothing happened for 0.2 s"):
        waiting.follow(silent, silent_s=0.2)
    assert silent.returncode
    gone = command("sleep 3 & echo one")
    gone.wait()
    with pytest.raises(waiting.Stuck, match="it has ended, but not its output"):
        waiting.follow(gone, silent_s=0.2)


def test_sizes_are_told_while_folders_come_and_go(tmp_path):
    """A run that arrives is moved to its place meanwhile."""
    moving = command(
        f"cd {tmp_path}; n=0; while [ $n -lt 300 ]; do mkdir -p a/b/c; : >a/b/c/d; mv a e; rm -r e;"
        " n=$((n + 1)); done"
    )
    while moving.poll() is None:
        waiting.sizes([tmp_path])
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "ten").write_bytes(b"x" * 10)
    assert waiting.sizes([tmp_path]) == 11
