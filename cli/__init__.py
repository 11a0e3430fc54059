"""The command line: one module a subcommand, each with ``add_parser`` and ``run``.

Nothing that takes long to import is imported before a subcommand runs. Exit codes are those of
``kvsan.harness.verdict``; no error leaves as a traceback unless KVSAN_DEBUG is set.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import traceback
from typing import NoReturn

from kvsan.cli import engines, fuzz, invariants, kernels, prove, replay, shrink, targets
from kvsan.harness.verdict import EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_USAGE, HarnessError, UsageError

COMMANDS = (fuzz, replay, shrink, prove, targets, invariants, kernels, engines)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of bad input."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    top = _Parser(
        prog="kvsan",
        description="A sanitizer for paged KV caches: finds silent corruption and shrinks it to a short trace.",
        epilog="example: kvsan fuzz --target paged --budget 60s",
    )
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        args = parser().parse_args(arguments)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _complain(error, EXIT_USAGE)
    except HarnessError as error:
        return _complain(error, EXIT_HARNESS)
    except KeyboardInterrupt:
        return _complain(KeyboardInterrupt("interrupted"), EXIT_INTERRUPTED)
    except BrokenPipeError:
        _stop_writing()
        return EXIT_HARNESS
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _stop_writing()
        return _complain(error, EXIT_HARNESS)
    except Exception as error:
        return _complain(error, EXIT_HARNESS)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """A CI system that gives up on a job asks with SIGTERM first."""
    raise KeyboardInterrupt


def _complain(error: BaseException, code: int) -> int:
    if os.environ.get("KVSAN_DEBUG"):
        traceback.print_exception(error)
    text = str(error)
    if not isinstance(error, UsageError | HarnessError | KeyboardInterrupt):
        text = f"{type(error).__name__}: {error} (set KVSAN_DEBUG=1 to see where)"
    print(f"kvsan: {' '.join(text.split())}", file=sys.stderr)
    return code


def _stop_writing() -> None:
    """Nothing can be written to stdout any more; keep Python from trying again at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
