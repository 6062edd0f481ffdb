"""The commands `retcon purify` and `retcon diff`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from retcon.cli.arguments import check_number, check_useful, command_line
from retcon.core.errors import Interrupted, RecordError, nearest
from retcon.core.types import REPLACED, Decision
from retcon.runs.progress import show_progress

if TYPE_CHECKING:
    from retcon.core.types import Trajectory
    from retcon.purify.offline import Repairer
    from retcon.report.transcript import Change
    from retcon.transcripts.purification import Assignment, FileJob, JobStopped

State = Literal["check", "ignore"]


def purify(
    inputs: Annotated[
        list[str], typer.Argument(metavar="IN…", help="Files, folders or patterns; [bold]-[/] is standard input.")
    ],
    *,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="OUT", help="A file, a folder ([bold]…/[/]), or [bold]-[/].")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed and what would be left, and write nothing.")
    ] = False,
    format: Annotated[
        str,
        typer.Option("--format", help="The format of the inputs; a wrong name lists them all."),
    ] = "auto",
    gamma: Annotated[
        float,
        typer.Option(
            "--gamma", callback=check_number, min=0.0, max=1.0, help="γ: similarity from which a repair is shallow."
        ),
    ] = 0.5,
    attempts: Annotated[
        int, typer.Option("--attempts", min=1, help="K: the longest run of failures that one fix may end.")
    ] = 3,
    state: Annotated[
        State, typer.Option("--state", help="[bold]check[/] what a failed call left behind, or [bold]ignore[/] it.")
    ] = "check",
    failure: Annotated[
        list[str] | None,
        typer.Option(
            "--failure",
            metavar="TOOL=REGEX",
            help="What an output of this tool has that failed ([bold]*[/]: of any), or a .toml with a table failures.",
        ),
    ] = None,
    drop_unrepaired: Annotated[
        bool, typer.Option("--drop-unrepaired", help="Leave out transcripts in which a failure remains.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip records and files that cannot be read.")] = False,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="All counts as JSON.")] = None,
    dpo: Annotated[
        Path | None, typer.Option("--dpo", metavar="FILE", help="Pairs of failure and fix, as TRL reads them.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            "--audit", metavar="FILE", help="File for what was done and why, for `retcon diff`; by default beside OUT."
        ),
    ] = None,
    no_audit: Annotated[bool, typer.Option("--no-audit", help="Write no audit.")] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Processes that share the work; the output is the same.")
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace finished outputs.")] = False,
) -> None:
    """Remove failed calls that the agent fixed itself from transcripts. All else stays as it is."""
    from retcon.store.records import STDIN, expand

    if not out and not dry_run:
        raise typer.BadParameter("name the output, or give --dry-run", param_hint="--out")
    target = Path(out)
    found = list(expand(inputs, None if dry_run or out == "-" else target))  # before what is slow to import

    from retcon.purify.offline import Repairer
    from retcon.store.lines import SUFFIX, check_no_journal
    from retcon.store.whole import OutputFile, check_not_finished, check_outputs, check_suffix
    from retcon.transcripts.detector import Detector
    from retcon.transcripts.purification import Assignment, FileJob, JobStopped
    from retcon.transcripts.verdicts import read_named_failures

    if dry_run:
        _list_repairs(found, format, Repairer(attempts, gamma, state), read_named_failures(failure or ()), skip_bad)
        return
    Detector(format)  # refuses a wrong name before any work
    if no_audit and audit is not None:
        why = f"with --no-audit nothing is written to {audit}: give one of them"
        raise typer.BadParameter(why, param_hint="--audit")
    folder = out.endswith("/") or target.is_dir() or (len(found) > 1 and out != "-" and not target.suffix)
    names = [name for _, name in found]
    if folder:
        _check_distinct_outputs(target, found)
    else:
        _check_distinct_inputs([path for path, _ in found])
    assignment = Assignment(
        inputs=[path for path, _ in found], out=target, into_folder=folder, names=names,
        offline=Repairer(attempts, gamma, state), format=format, drop_unrepaired=drop_unrepaired, skip_bad=skip_bad,
        audit=None if no_audit else audit or audit_of(target, folder), pairs=dpo, jobs=jobs,
        failures=read_named_failures(failure or ()),
    )  # fmt: skip
    if not folder and out != "-":
        check_suffix(target, "-o")
    for flag, path in (("--audit", audit), ("--dpo", dpo), ("--report", report)):
        if path is not None:
            check_suffix(path, flag, also=(".parquet", ".eval", ".pt"))
    run = FileJob(assignment, resume=resume)
    reported = [OutputFile("--report", report, (report.name + SUFFIX,))] if report is not None else []
    check_outputs([*assignment.outputs(), *reported], [p for p in assignment.inputs if p != STDIN])
    for output in reported if resume else [*assignment.outputs(), *reported]:
        check_no_journal(output.path)
    if not force:
        # A resumed run may replace what it was allowed to replace at first.
        check_not_finished(reported if resume else [*assignment.outputs(), *reported], "--force")
    try:
        with _stop_requests() as stop, show_progress("purifying (kB)") as tell:
            run(tell, stop)
    except JobStopped as stopped:
        raise _to_error(stopped, assignment, out) from stopped.__cause__
    _finish(run, report)


def _list_repairs(
    inputs: Sequence[tuple[Path, str]], format: str, offline: Repairer, failures: Mapping[str, str], skip_bad: bool
) -> None:
    """Print for each failed call its replacement, or why it would stay."""
    import msgspec
    from rich.console import Console

    from retcon.core.codec import from_dict
    from retcon.store.records import open_source
    from retcon.transcripts.detector import sample_records
    from retcon.transcripts.purifier import Count, RecordRepairer, Sinks, repair_lines

    console = Console()
    lines: list[str] = []

    def listed(line: bytes) -> None:
        lines.extend(repair_lines(from_dict(msgspec.json.decode(line))))

    total = Count()
    for path, name in inputs:
        found = sample_records(open_source(path), format, skip_bad=skip_bad)
        purifier = RecordRepairer(offline, found.detector, Sinks(listed), total, name=name, failures=failures)
        try:
            for record in found.source.records:
                purifier(record)
                for line in lines:
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                lines.clear()
        finally:
            found.source.close()
    removed = f"{total.shallow + total.deep} would be replaced, {sum(total.left.values())} would stay"
    console.print(f"{total.failed} of {total.calls} calls failed; {removed}; nothing was written")


def _finish(run: FileJob, report: Path | None) -> None:
    from rich.console import Console

    from retcon.report.purification import purification_tables, remarks
    from retcon.transcripts.purification import write_report

    assignment = run.assignment
    console = Console(stderr=assignment.out.name == "-")
    for line in [*(f"skipped: {line}" for line in run.bad), *remarks(assignment.inputs, run.counts)]:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    for table in purification_tables(assignment.names, run.counts, console):
        console.print(table)
    written = [f"clean: {assignment.out}"] if assignment.out.name != "-" else []
    if report is not None:
        write_report(report, run)
        written.append(f"report: {report}")
    if assignment.pairs is not None:
        written.append(f"pairs: {assignment.pairs}")
    if assignment.audit is not None:
        written.append(f"audit: {assignment.audit}")
        if any(count.shallow or count.deep for count in run.counts):
            written.append(f"try: {command_line('retcon', 'diff', assignment.audit)}")
    console.print("\n".join(written), highlight=False, soft_wrap=True, markup=False)
    if not any(count.transcripts for count in run.counts) and not run.bad:
        raise RecordError(f"{', '.join(map(str, assignment.inputs))}: empty: there is no transcript to purify")


def _check_distinct_outputs(folder: Path, found: Sequence[tuple[Path, str]]) -> None:
    """Raise RecordError, naming both, where two inputs would be one file of a folder."""
    from retcon.store.whole import identity

    first: dict[str, Path] = {}
    for path, name in found:
        if (other := first.setdefault(name, path)) is not path:
            advice = (
                "give the folder that holds both, which keeps their places in it, or write them into one file "
                "(-o all.jsonl)"
            )
            if identity(path) == identity(other):
                advice = "they are one file, give one of them"
            raise RecordError(f"{other} and {path} would both be {folder / name}: {advice}")


def _check_distinct_inputs(inputs: Sequence[Path]) -> None:
    """Raise RecordError, naming both, where two inputs are one file: its content would be in the output twice."""
    from retcon.store.whole import identity

    first: dict[Hashable, Path] = {}
    for path in inputs:
        if (other := first.setdefault(identity(path), path)) is not path:
            raise RecordError(f"{other} and {path} are one file, which would be in the output twice: give one of them")


def audit_of(out: Path, folder: bool) -> Path | None:
    """Default path of the audit: beside an output file."""
    from retcon.store.compression import plain_name
    from retcon.store.records import KINDS

    if out.name == "-":
        return None
    if folder:
        return out / "retcon.audit.jsonl"
    name = plain_name(out.name)
    name = name.removesuffix(next((kind for kind in KINDS if name.endswith(kind)), ""))
    return out.with_name(f"{name}.audit.jsonl")


def _to_error(stopped: JobStopped, assignment: Assignment, out: str) -> Exception:
    """The error for a bad record, or the interrupt, with how to continue."""
    if stopped.kept is not None:
        place = out if assignment.into_folder else f"{out}.partial"
        again = f"what was done is kept in {place}; continue with the same command and --resume"
    else:
        cannot = "standard input and output, Parquet, inspect's logs, slime's dumps"
        again = f"what was done cannot be continued ({cannot}): begin again"
    if stopped.__cause__ is None:
        return Interrupted(again)
    otherwise = "" if assignment.skip_bad else ", or with --skip-bad"
    return RecordError(f"{stopped}\n{again}, after mending it{otherwise}")


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM came, polled between records so that each is whole; a second one ends it."""
    asked: list[int] = []

    def ask(number: int, _: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    except KeyboardInterrupt:
        raise Interrupted("stopped at once; unfinished output is left in .partial files") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Kind = Literal["repaired", "shallow", "deep", "resampled", "described", "unrepaired", "answered", "any"]
_FIRST = 5


def diff(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit of `retcon purify`, or a trajectory file.")],
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Which trajectory; the beginning of an id is enough.")
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help=f"Show all of them, not just the first {_FIRST}.")] = False,
    kind: Annotated[
        Kind, typer.Option("--kind", help="Which decisions to show; repaired means the first three.")
    ] = "repaired",
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Show this many, drawn at random from the file.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of that draw.", show_default="0")] = None,
) -> None:
    """Show what was replaced: each failure next to its fix, how similar they are, and why."""
    from rich.console import Console

    from retcon.report.transcript import show_change

    check_useful("--seed", seed is not None and sample is None, "it is of a draw: say how many (--sample)")
    check_useful("--all", all_ and sample is not None, f"--sample {sample} shows no more than that: leave one out")
    found = _sample_changes(_changes(file, id, kind), sample, seed or 0) if sample else _changes(file, id, kind)
    console = Console()
    shown = more = 0
    for change in found:
        if not (all_ or sample or id) and shown == _FIRST:
            more += 1
            continue
        console.print(show_change(change))
        shown += 1
    if not shown:
        raise RecordError(_nothing(file, id, kind))
    if more:
        console.print(f"and {more} more: --all shows them", style="dim")


def _changes(file: Path, id: str | None, kind: Kind) -> Iterator[Change]:
    from retcon.report.transcript import changes
    from retcon.store.jsonl import contains_id

    decisions = {"repaired": tuple(REPLACED), "any": get_args(Decision)}.get(kind, (kind,))
    exact = id is not None and contains_id(file, id)
    for trajectory in _read_audited(file):
        if id is None or (trajectory.id == id if exact else trajectory.id.startswith(id)):
            yield from (c for c in changes(trajectory) if c.repair.decision in decisions)


def _read_audited(file: Path) -> Iterator[Trajectory]:
    """Trajectories of a file. Raises RecordError for output of `retcon purify`, naming the audit beside it."""
    from retcon.store import jsonl

    try:
        yield from jsonl.read(file)
    except RecordError as error:
        audit = audit_of(file, False)
        hint = f"; the audit of {file.name} is {audit}" if audit is not None and audit.is_file() else ""
        raise RecordError(f"{error}{hint}") from None


def _sample_changes(found: Iterator[Change], size: int, seed: int) -> list[Change]:
    """A uniform sample of `size` changes in the file's order, with memory for only those."""
    import random

    draw = random.Random(seed)
    kept: list[tuple[int, Change]] = []
    for n, change in enumerate(found):
        if len(kept) < size:
            kept.append((n, change))
        elif (place := draw.randrange(n + 1)) < size:
            kept[place] = (n, change)
    return [change for _, change in sorted(kept, key=lambda pair: pair[0])]


def _nothing(file: Path, id: str | None, kind: Kind) -> str:
    from retcon.store import jsonl

    if id is None:
        return f"{file}: nothing is {kind} in it; --kind any shows what was looked at"
    ids = [t.id for t in jsonl.read(file)]
    if any(i.startswith(id) for i in ids):
        return f"{file}: nothing is {kind} in '{id}'; --kind any shows what was looked at"
    return f"{file}: no trajectory '{id}'{nearest(id, ids)}; `retcon show {file}` lists all"
