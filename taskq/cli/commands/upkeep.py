"""Commands about the log's own state: ``compact``, ``repair``, ``health`` and ``check``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import click

import taskq.cli.render as render
import taskq.extras as extras
from taskq import text, values, views
from taskq.cli import errors, options
from taskq.cli.commands.jobs import print_damage

#: Least width of the names of checks.
_NAME_COLUMNS: Final = 8


@click.command()
@options.log_argument
@options.json_option
@click.option(
    "--keep", help='Keep finished jobs this time, for example "12h".  [default: settings]'
)
@click.option("--dry-run", is_flag=True, help="Change nothing; print the plan.")
@options.over_shards
def compact(data_dir: Path | None, as_json: bool, keep: str | None, dry_run: bool) -> None:
    """Remove the oldest segments as far as the settings allow, beside live workers.

    Unsettled jobs, dead letters, held keys and finished jobs that are kept are written again first.
    Workers do this by themselves.
    """
    from taskq import TaskQ  # noqa: PLC0415 - loads pydantic, which help must not

    limit = None if keep is None else options.span(keep)
    options.open_reader(data_dir, warns=False).close()
    # Before any change: another user's log may have that user's settings.
    app = TaskQ(data_dir, upkeep=False)
    obeyed = [str(file) for file in app.settings.files]
    if obeyed:
        render.echo(f"taskq: with the settings of {text.flat(', '.join(obeyed))}", err=True)
    try:
        report = app.compact_sync(keep=limit, dry_run=dry_run)
    finally:
        app.close_sync()
    if as_json:
        render.print_json(
            {
                "dry_run": report.dry_run,
                "settings_files": obeyed,
                "carried": report.carried,
                "freed_bytes": report.freed,
                "segments": [
                    {
                        "segment": segment.segment,
                        "size_bytes": segment.size,
                        "needed_bytes": segment.needed,
                        "removed": segment.removed,
                        "reason": segment.reason,
                    }
                    for segment in report.segments
                ],
            }
        )
        return
    _print(report)


def _print(report: views.CompactReport) -> None:
    if not report.segments:
        render.echo("Nothing to do: no segment is due.")
        return
    done = "would go" if report.dry_run else "gone"
    render.print_table(
        ("SEGMENT", ">SIZE?", ">NEEDED?", "", "WHY~"),
        [
            (
                segment.segment,
                render.size(segment.size),
                render.size(segment.needed),
                done if segment.removed else "stays",
                segment.reason,
            )
            for segment in report.segments
        ],
    )
    verb = "would be freed" if report.dry_run else "freed"
    carried = render.count_of(report.carried)
    render.echo(f"\n{render.size(max(report.freed, 0))} {verb}, {carried} written again")


# ``taskq repair``: copy the readable records of a damaged log into a new directory.


@click.command()
@options.log_argument
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="NEW",
    help="Copy what reads to this directory, which is empty or not there.",
)
@options.json_option
@options.over_shards
def repair(data_dir: Path | None, target: Path | None, as_json: bool) -> None:
    """Copy what reads of a damaged log into a new directory; the damaged one is left as it is.

    Without --to it only lists the losses: a job with a damaged record is gone, a job with a damaged
    outcome runs again. With --to, no process may have the log open. Then let workers use the
    new directory, or give it the name of the old one. Shards go below NEW, under their names.
    """
    from taskq.engine import repair_directory  # noqa: PLC0415 - as in options

    with options.open_reader(data_dir, warns=False) as reader:
        path = reader.journal.path
    place = target
    if place is not None and Path(path).name in options.names_below(Path(path).parent):
        place /= Path(path).name
    report = repair_directory(path, None if place is None else str(place))
    if as_json:
        render.print_json(
            {
                "damage": [damage.as_dict() for damage in report.damage],
                "lost_jobs": list(report.lost_jobs),
                "lost_records": report.lost_records,
                "target": None if place is None or not report.damage else str(place),
            }
        )
    elif not report.damage:
        render.echo("no damage: nothing to repair")
    else:
        _repair_print(report, path, place)


def _repair_print(report: views.RepairReport, path: str, target: Path | None) -> None:
    print_damage(report.damage, path)
    saved = sum(damage.salvaged for damage in report.damage)
    render.echo(f"records in damaged frames: {saved} saved, {report.lost_records} lost")
    for job in report.lost_jobs:
        render.echo(f"lost job {job}")
    if target is None:
        render.echo(f"Copy what reads with: {values.command(path, 'repair')} --to NEW")
    else:
        render.echo(
            f"the readable part is in {text.flat(str(target))}; {text.flat(path)} is as it was"
        )


# ``taskq health``: readiness and liveness for scripts, containers and service managers.


@click.command()
@options.log_argument
@options.json_option
@click.option(
    "--live",
    is_flag=True,
    help="Only what a restart would mend: a worker that starts or drains is well.",
)
@options.over_shards
def health(data_dir: Path | None, as_json: bool, live: bool) -> None:
    """Exit with 0 if jobs are worked on, with 1 if not; nothing is locked or written.

    Checks that the log reads, has no failed write, is open in a process that is not stopped, that a
    worker claims jobs, that each waiting job has a worker, and that the disk has room. With
    --live the last three do not count.
    It also shows which users can use the log's files.
    """
    from taskq.connection.settings import load_settings  # noqa: PLC0415 - as above
    from taskq.engine import check_health  # noqa: PLC0415 - help must not import the log

    path = options.resolve(data_dir)
    config = load_settings(None, data_dir=data_dir).log_config()
    checks = check_health(path, config, with_jobs=not live)
    _print_checks(
        checks, well=all(check.ok for check in checks if check.vital or not live), as_json=as_json
    )


def _print_checks(checks: list[views.Check], *, well: bool, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "ok": well,
                "checks": [
                    {"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks
                ],
            }
        )
    else:
        width = max(_NAME_COLUMNS, *(len(check.name) for check in checks))
        for check in checks:
            sign = "ok" if check.ok else "FAILED"
            lines = text.printable(check.detail).split("\n")
            render.echo(f"{sign:<7} {check.name:<{width}} {lines[0]}")
            for line in lines[1:]:  # the traceback of a failed import
                render.echo(f"{'':<7} {'':<{width}} {line}")
    if not well:
        click.get_current_context().exit(errors.EXIT_FAILED)


# ``taskq check``: find problems before the start.


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@options.data_dir_option
@click.option("-I", "--include", multiple=True, metavar="MODULE", help="As for a worker.")
@options.json_option
def check(app: str | None, data_dir: Path | None, include: tuple[str, ...], as_json: bool) -> None:
    """Check a setup before its start; exits with 0 if all is well, with 1 else.

    Looks at settings, directory, rights, disk and clock, and with MODULE:APP, which is imported as
    a worker would, at its tasks and schedules, and for waiting jobs of unknown tasks.
    Nothing is written, no lifespan entered and no job run.
    """
    from taskq.connection.settings import load_settings  # noqa: PLC0415 - as above
    from taskq.engine import check_start  # noqa: PLC0415 - as above
    from taskq.errors import UsageError  # noqa: PLC0415 - as above
    from taskq.views import Check  # noqa: PLC0415 - as above

    if include and app is None:
        raise errors.WrongUsage("-I is for the tasks of an app: give MODULE:APP, too")
    looks = extras.workers()
    checks: list[Check] = [looks.check_versions()]
    loaded = None
    if app is not None:
        loaded, of_app = looks.check_app(app, include, data_dir)
        checks += of_app
    try:
        settings = vars(loaded).get("settings") if loaded is not None else None
        settings = settings or load_settings(None, data_dir=data_dir)
        sources = settings.sources or "nothing is set in files"
        config = settings.log_config()
    except UsageError as error:
        checks.append(Check(name="settings", ok=False, detail=str(error)))
    else:
        path = data_dir or (settings.data_dir if loaded is None else loaded.data_dir)
        checks.append(Check(name="settings", ok=True, detail=sources))
        for log in options.logs_below(path):
            checks += check_start(log, config)
    _print_checks(checks, well=all(log.ok for log in checks), as_json=as_json)


@click.command()
@click.argument("places", metavar="[DIR] DEST", nargs=-1, type=click.Path(path_type=Path))
@options.data_dir_option
@options.json_option
def backup(places: tuple[Path, ...], data_dir: Path | None, as_json: bool) -> None:
    """Copy a log to DEST as it stands, beside live workers.

    It has every job acknowledged before. A second backup to the same place leaves out the
    full segments that it has. Read commands open it (-d DEST), and taskq restore makes a log of it.
    """
    from taskq.engine import back_up  # noqa: PLC0415 - help must not import the log

    if len(places) not in {1, 2}:
        raise errors.WrongUsage("give the log's directory, then the backup's")
    *given, target = places
    source = given[0] if given else data_dir
    with options.open_reader(source, warns=False) as reader:
        path = reader.journal.path
    _copies_tell(back_up(path, str(target)), target, as_json=as_json)


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("places", metavar="[DIR]", nargs=-1, type=click.Path(path_type=Path))
@options.data_dir_option
@options.json_option
def restore(
    source: Path,
    places: tuple[Path, ...],
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Make a log of BACKUP in DIR, which is empty or not there.

    The restored log is a new one, which names the lost log as its parent. Jobs of the backup keep
    their ids, and jobs that ran at the time of the backup run again.
    """
    from taskq.engine import restore as restored  # noqa: PLC0415 - likewise

    if len(places) > 1 or (not places and data_dir is None):
        raise errors.WrongUsage("give the backup, then the new directory")
    target = places[0] if places else data_dir
    assert target is not None
    with options.open_reader(source, warns=False) as reader:
        path = reader.journal.path
    _copies_tell(restored(path, str(target)), target, as_json=as_json)
    if not as_json:
        render.echo(f"Work goes on with: {values.worker_command(str(target.absolute()))}")


@click.command()
@options.log_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("case.zip"),
    show_default=True,
    help="The file, which must not be there.",
)
@click.option(
    "--since", default="1h", show_default=True, metavar="MOMENT", help="Records from then on."
)
@click.option("--with-payloads", is_flag=True, help="With payloads and results, too.")
@click.option(
    "--show-secrets", is_flag=True, help="Include values that their names mark as secret."
)
def report(
    data_dir: Path | None, output: Path, since: str, with_payloads: bool, show_secrets: bool
) -> None:
    """Write a case file: a zip with which others can look into the log.

    It has versions, settings without secrets, the output of health, verify, stats, workers,
    schedules, ls and dead, timelines of dead and running jobs, and the records since a moment as a
    log that read commands open: taskq ls -d case.zip. It also has keys, headers, reasons of
    failures and kept log lines; payloads and results only with --with-payloads.
    """
    from taskq.cli.casefile import write_case  # noqa: PLC0415 - help must not import it
    from taskq.engine import Moment  # noqa: PLC0415 - likewise

    since_ns = Moment.parse(since, time.time_ns(), "--since").time_ns
    if since_ns is None:
        raise errors.WrongUsage('--since takes a span back from now ("2h") or a time, and no lsn')
    with options.open_reader(data_dir) as reader:
        try:
            size = write_case(
                reader, output, since_ns, bodies=with_payloads, show_secrets=show_secrets
            )
        except FileExistsError:
            raise errors.Failure(f"{output} is there already: name another file with -o") from None
    left_out = "" if with_payloads else ", without payloads and results"
    render.echo(f"{output}: {render.size(size)}{left_out}")


def _copies_tell(report: views.BackupReport, target: Path, *, as_json: bool) -> None:
    if as_json:
        render.print_json(
            {
                "directory": str(target.absolute()),
                "log_id": report.log_id,
                "next_lsn": report.next_lsn,
                "segments": report.segments,
                "segments_copied": report.copied,
                "copied_bytes": report.copied_bytes,
            }
        )
        return
    segments = render.count_of(report.segments, "segment")
    size = render.size(report.copied_bytes)
    render.echo(f"{target} holds {segments} up to lsn {report.next_lsn - 1}; {size} were copied")
