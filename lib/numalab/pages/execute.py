"""Execution of notebooks by papermill: nothing else executes one."""

from __future__ import annotations

import functools
import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from numalab import home, runs, untrusted
from numalab.agent.errors import Fault

GENERIC = Path(__file__).with_name("run.ipynb")
"""Shows a run of an experiment that this checkout does not have."""

EXECUTED = "notebook.ipynb"
_START_S = 600  # in which a kernel starts: a machine with a load of 20 takes more than a minute


def execute(folder: Path, notebook: Path | None = None, *, aside: bool = False) -> Path:
    """Execute the notebook that shows a run; return the executed one, in the run directory.

    With ``aside``, and where this user may not write into the run directory, it goes to the folder
    for what is made: a run that is sealed without a notebook must not get one.
    ``notebook`` is the one that a trusted experiment file names; without it, it is the checkout's
    own of that experiment, else the generic one: never one that the run directory names. Raises
    Fault when a cell fails, with the cell's own error.
    """
    run = runs.load(folder)
    if notebook is None:
        notebook = home.notebook(run.notebook) or GENERIC
    target = _aside(folder) if aside or not _may_write(folder) else folder / EXECUTED
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # whose other name a hard link may be
    run_notebook(notebook, target, {"source": from_root(folder)})
    memo = _memo(target)
    memo.parent.mkdir(parents=True, exist_ok=True)
    memo.write_text(f"{folder}\n", encoding="utf-8")
    return target


def executed(run: runs.Run) -> Path:
    """Return a run's executed notebook: the one in its folder only if this checkout made it.

    One that came with a stranger's run may hold anything; it is made anew, outside of the run.
    """
    for found in (run.folder / EXECUTED, _aside(run.folder)):
        if found.is_file() and _memo(found).exists():
            return found
    return execute(run.folder, aside=True)


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _aside(folder: Path) -> Path:
    return home.build() / "executed" / folder.resolve().parent.name / folder.name / EXECUTED


def _memo(notebook: Path) -> Path:
    """The file that says, outside of a run directory, that a notebook was executed here."""
    return home.memo("executed", untrusted.sha256(notebook.parent, notebook.name).encode())


def from_root(folder: Path) -> str:
    """Return a path below the root as seen from there, so that it holds on any machine."""
    full, root = folder.resolve(), home.root()
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else str(full)


def run_notebook(source: Path, target: Path, parameters: dict[str, Any]) -> None:
    """Execute any notebook by papermill; an unknown parameter is a Fault (papermill only warns).

    Nothing that differs from one execution to the next stays in the file: no times, no paths.
    """
    if not source.is_file():
        raise Fault(f"there is no notebook {source}", "the experiment's file names it")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # debugger's noise on 3.11+
    import papermill

    try:
        known = papermill.inspect_notebook(str(source))
    except (ValueError, LookupError, AttributeError) as error:  # no JSON, without a kernel's name
        raise Fault(f"{source.name} cannot be read: {error}", "save it again by Jupyter") from None
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise Fault(
            f"{source.name} has no parameter {', '.join(unknown)}",
            f"its parameters are {', '.join(known) or 'none'}",
        )
    try:
        papermill.execute_notebook(
            str(source),
            str(target),
            parameters=parameters,
            kernel_name="python3",
            progress_bar=False,
            cwd=str(home.root()),
            start_timeout=_START_S,
            # Of the kernel: nothing on its transport, or that it was asked to end. What a cell
            # raises comes another way.
            extra_arguments=["--log-level=CRITICAL"],
        )
    except papermill.PapermillExecutionError as error:
        raise Fault(
            f"{source.name} failed in cell {error.cell_index}: {error.ename}: {error.evalue}",
            f"the notebook as far as it came: {target}; to try again: "
            f"{_by_hand(source, parameters)}",
        ) from None
    except RuntimeError as error:  # jupyter_client's wait_for_ready, nbclient's DeadKernelError
        raise Fault(
            f"{source.name}: its Jupyter kernel did not start, or ended: {error}",
            "what was measured is kept; try again when the machine is less busy: numalab report",
        ) from None
    finally:
        if target.is_file():
            _clean(target)


def _by_hand(source: Path, parameters: dict[str, Any]) -> str:
    """The command that executes a notebook again."""
    given = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    return shlex.join(["papermill", from_root(source), "again.ipynb", *given])


def entitle(book: Any, front: dict[str, Any]) -> None:
    """Give a notebook a page's head: its first cell, the only raw one, in YAML."""
    import nbformat

    text = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    if book.cells[0].cell_type != "raw":
        book.cells.insert(0, nbformat.v4.new_raw_cell())
    book.cells[0].source = f"---\n{text}---"


def _clean(path: Path) -> None:
    """Take out of an executed notebook what only tells when and where it was executed."""
    import nbformat

    book = nbformat.read(path, as_version=4)
    book.metadata.pop("papermill", None)
    book.metadata.language_info = {"name": "python"}
    for cell in book.cells:
        for key in ("papermill", "execution", "collapsed"):
            cell.metadata.pop(key, None)
    nbformat.write(book, path)


def in_place(source: Path, parameters: dict[str, Any]) -> None:
    """Execute a committed notebook over other parameters, written into its own parameters cell."""
    import nbformat

    book = nbformat.read(source, as_version=4)
    cell = next(one for one in book.cells if "parameters" in one.metadata.get("tags", []))
    for name, value in parameters.items():
        changed, count = re.subn(
            rf"^{name} = .*?(  #.*)?$",
            functools.partial(_assigned, name, value),
            cell.source,
            flags=re.MULTILINE,
        )
        if count != 1:
            raise Fault(f"{source.name} has no parameter {name}", "see its parameters cell")
        cell.source = changed
    nbformat.write(book, source)
    run_notebook(source, source, {})


def _assigned(name: str, value: Any, before: re.Match[str]) -> str:
    return f"{name} = {value!r}{before[1] or ''}"
