"""The app: its commands in the order of its help, and how it ends."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from whyformer import __version__
from whyformer.cli.audit import audit, replay
from whyformer.cli.heads import heads
from whyformer.cli.lab import claims, lab
from whyformer.cli.showing import say, show
from whyformer.cli.wire import certify, drill, wire
from whyformer.errors import WhyformerError

_TyperUsage: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""What typer raises for a call that it cannot read: the base of its usage errors."""

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, invoke_without_command=True
)
COMMANDS = {each.__name__: each for each in (lab, audit, heads, replay, claims, wire, certify, drill)}
for each in COMMANDS.values():
    app.command()(each)


def main() -> None:
    """Run the command line, and exit with its status."""
    try:
        sys.exit(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(say("interrupted", 130))


def _run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            from whyformer.report.terminal import ENCODING_ERRORS

            stream.reconfigure(errors=ENCODING_ERRORS)
    try:
        status = app(args=arguments, prog_name="whyformer", standalone_mode=False) or 0
    except WhyformerError as error:
        return say(str(error), 2)
    except _TyperUsage as error:
        problem = error.format_message().rstrip(".")
        return say(f"{problem}; 'whyformer {_command(arguments)}--help' lists what there is", 2)
    if status == 130:
        raise KeyboardInterrupt
    return status


@app.callback()
def lab_without_a_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> int:
    """Prove, with real tensors, why a transformer works. Without a command, run the lab.

    Exit status: 0 every claim holds, 1 one is refuted, 2 the call is unusable, 3 one is inconclusive.
    """
    if version:
        show([f"whyformer {__version__}"])
        raise typer.Exit
    return lab() if context.invoked_subcommand is None else 0


def _command(arguments: list[str]) -> str:
    """The command that was called, with a space after it; empty where none was."""
    called = [argument for argument in arguments[:1] if argument in COMMANDS]
    return f"{called[0]} " if called else ""
