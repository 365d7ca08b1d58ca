"""Errors on a terminal: one or two lines with the next step, never a traceback.

Exit codes: 0 done, 1 a failure that the message explains, 2 wrong usage, 130 interrupted by Ctrl-C,
141 the reader of the output went away (like a program killed by SIGPIPE).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, TextIO

import click
from click.exceptions import Exit

from taskq.errors import TaskqError, UsageError
from taskq.log.machine.forks import READER_GONE, fill_standard


@contextlib.contextmanager
def whole_streams() -> Iterator[None]:
    """Replace missing streams, and escape characters that an output cannot encode.

    Neither an unwritable output nor a task that replaced a stream makes the exit fail.
    """
    fill_standard()
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # its descriptor was closed, or there is no console
            descriptor = os.open(os.devnull, os.O_RDWR)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a name that cp1252 lacks is no error
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for stream in streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                silence(stream)


def silence(stream: TextIO) -> None:
    """Discard the rest of a stream's buffer, and all later output."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141
_NO_ROOM: Final = "Free some space or inodes (df -h, df -i), then try again"
#: Errors of a full or closed output, without a file name; the log's own errors have one.
_NOT_WRITTEN: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


class Failure(click.ClickException):
    """Ends the command with one message on stderr and exit code 1."""

    exit_code = EXIT_FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message after the program's name, if stderr can be written."""
        from taskq.text import printable  # noqa: PLC0415 - help must not import it

        # Messages quote text from other processes, records and files.
        line = f"taskq: {printable(self.message)}"
        try:
            click.echo(line, file=file, err=file is None)
        except OSError:
            silence(sys.stderr)


class WrongUsage(Failure):
    """Like ``Failure``, for a wrong command line: exit code 2."""

    exit_code = EXIT_USAGE


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a command's exception into a short message and an exit code; bugs pass through."""
    try:
        yield
        with contextlib.suppress(ValueError, AttributeError):  # closed or removed by a task
            sys.stdout.flush()
    except Failure:
        raise
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself, since click 8.2
            raise
        raise _short(error) from None
    except UsageError as error:
        raise WrongUsage(str(error)) from error
    except TaskqError as error:
        raise Failure(str(error)) from error
    except BrokenPipeError:
        silence(sys.stdout)
        raise Exit(EXIT_PIPE_CLOSED) from None
    except (KeyboardInterrupt, click.Abort):
        raise Exit(EXIT_INTERRUPTED) from None
    except (OSError, RuntimeError) as error:
        raise _refused(error) from error


def _refused(error: OSError | RuntimeError) -> Exception:
    """Return the system's error as a message; without a file name it may be a bug of taskq."""
    if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C came while a class was created
        return Exit(EXIT_INTERRUPTED)
    if not isinstance(error, OSError):
        return error
    if error.filename is not None:
        name = os.fsdecode(error.filename)
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = _NO_ROOM if is_full else "Check the path and its permissions"
        return Failure(f"{name}: {error.strerror}. {advice}")
    if error.errno == errno.ENOENT:  # only the working directory has no name
        return Failure("the working directory is gone: go to another one")
    if error.errno not in _NOT_WRITTEN | READER_GONE:
        return error
    silence(sys.stdout)
    is_gone = error.errno in READER_GONE
    written = Failure(f"the output cannot be written ({error.strerror})")
    return Exit(EXIT_PIPE_CLOSED) if is_gone else written


def _short(error: click.UsageError) -> WrongUsage:
    from taskq.cli.habits import option_instead, subcommand_instead  # noqa: PLC0415 - as difflib

    path = error.ctx.command_path if error.ctx else "taskq"
    message = subcommand_instead(path, error.format_message()).rstrip(".")
    if isinstance(error, click.NoSuchOption):
        message = f"No such option {error.option_name!r}{_near(error)}"
        instead = option_instead(path, error.option_name)
        if instead:
            return WrongUsage(f"{path} has no {error.option_name}: {instead}")
    return WrongUsage(f"{message}\nSee {path} --help")


def _near(error: click.NoSuchOption) -> str:
    shown = error.ctx.command.params if error.ctx else ()
    known = {
        name for option in shown if not getattr(option, "hidden", False) for name in option.opts
    }
    near = [name for name in error.possibilities or () if name in known]
    return f". Did you mean {' or '.join(near)}?" if near else ""
