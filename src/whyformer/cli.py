"""The ``whyformer`` command. Importing it is cheap: torch is imported by the commands that measure."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whyformer import __version__
from whyformer.errors import UsageError, WhyformerError
from whyformer.finding import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

SEED = 31
CONTEXT = 8192
EXIT = {Verdict.HOLDS: 0, Verdict.INAPPLICABLE: 0, Verdict.REFUTED: 1, Verdict.INCONCLUSIVE: 3}
"""Exit status by verdict; an unusable call or target gives 2, an interruption 130."""

COMMANDS = ("lab", "audit", "heads", "replay", "claims", "wire", "certify", "drill")

_TyperUsage: type[typer.BadParameter] = typer.BadParameter.__mro__[1]
"""What typer raises for a call that it cannot read: the base of its usage errors."""


class Unit(StrEnum):
    """What one token of a text is."""

    WORDS = "words"
    CHARACTERS = "characters"


def _named(option: str) -> Callable[[str], Path]:
    """Reads the path that an option names: an empty one would be the folder that one is in."""

    def path(given: str) -> Path:
        if not given:
            raise UsageError(f"{option} ''", "it is empty", "name a file")
        return Path(given)

    return path


app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, invoke_without_command=True
)


def main() -> None:
    """Run the command line, and exit with its status."""
    try:
        sys.exit(_run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(_say("interrupted", 130))


def _run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            from whyformer.report.terminal import ENCODING_ERRORS

            stream.reconfigure(errors=ENCODING_ERRORS)
    try:
        status = app(args=arguments, prog_name="whyformer", standalone_mode=False) or 0
    except WhyformerError as error:
        return _say(str(error), 2)
    except _TyperUsage as error:
        problem = error.format_message().rstrip(".")
        return _say(f"{problem}; 'whyformer {_command(arguments)}--help' lists what there is", 2)
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
        _show([f"whyformer {__version__}"])
        raise typer.Exit
    return lab() if context.invoked_subcommand is None else 0


@app.command()
def lab(
    seed: Annotated[int, typer.Option(help="What every random draw follows from; 0 or more.")] = SEED,
    sequence: Annotated[
        str | None, typer.Option(help="Your own tokens, as integers: '4 7 2 9 7 5 3 8 2 9'.")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(help="How many symbols --sequence may use: 0 to VOCAB-1.", min=1)
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Your own text, a UTF-8 file.", parser=_named("--text"), metavar="PATH"),
    ] = None,
    by: Annotated[
        Unit | None,
        typer.Option(help="What one token of --text is: words (unless told otherwise) or characters."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help=f"How many tokens back a twin is sought; {CONTEXT:,} unless told otherwise."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the report there, by whyformer/report/1.", parser=_named("--json"), metavar="PATH"
        ),
    ] = None,
) -> int:
    """Prove routing and order, and show beside each proof the model that breaks it.

    With --sequence or --text, the two-layer induction circuit reads your own input instead.
    """
    _check_seed(seed)
    _check_own_input(sequence, text, vocab, by, context)
    if json is not None and text is not None and _same_file(json, text):
        raise UsageError(f"--json {json}", "it would replace the text that is read", "name another file")
    if json is not None:
        from whyformer.report.schema import check_writable

        check_writable(json)

    with _importing():
        from whyformer.lab import story

    if sequence is None and text is None:
        told = story.tell(seed)
    else:
        told = story.read_own(
            seed,
            sequence=sequence,
            vocabulary=vocab,
            text=text,
            by="characters" if by is Unit.CHARACTERS else "words",
            context=CONTEXT if context is None else context,
            progress=_progress if _on_a_terminal() else None,
        )
    if json is not None:
        from whyformer.report.schema import write_json

        write_json(told.report, json)
    _show(told.view)
    return EXIT[told.report.verdict]


@app.command()
def audit(
    target: Annotated[
        str,
        typer.Argument(help="path/file.py:NAME, package.module:NAME, or a checkpoint."),
    ],
    tokens: Annotated[
        int | None, typer.Option(help="A module that reads tokens: how many there are.", min=1)
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="A module that reads vectors: how wide they are.", min=1)
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(help="A claim to try, ID or ID=VALUE; give it again for more."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="How long an ordinary input is.")] = None,
    seed: Annotated[int, typer.Option(help="What every random draw follows from; 0 or more.")] = SEED,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the report there, by whyformer/report/1.", parser=_named("--json"), metavar="PATH"
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            help="Write the findings there, as JUnit XML.", parser=_named("--junit"), metavar="PATH"
        ),
    ] = None,
) -> int:
    """Try claims on any model, and show the smallest input that breaks it."""
    _check_seed(seed)
    for option, path in (("--json", json), ("--junit", junit)):
        if path is not None:
            from whyformer.report.schema import check_writable

            check_writable(path, option)

    with _importing():
        from whyformer.auditing import PartialReportError
        from whyformer.auditing import audit as examine

    failure: WhyformerError | None = None
    try:
        report = examine(
            target,
            claims=claim or (),
            tokens=tokens,
            width=width,
            length=length,
            seed=seed,
            progress=_trying if _on_a_terminal() else None,
        )
    except PartialReportError as error:
        report, failure = error.report, error
    if json is not None:
        from whyformer.report.schema import write_json

        write_json(report, json)
    if junit is not None:
        from whyformer.report.junit import write_junit

        write_junit(report, junit)
    from whyformer.report.terminal import report_view

    _show(report_view(report))
    if failure is not None:
        raise failure
    return EXIT[report.verdict]


@app.command()
def heads(
    target: Annotated[str, typer.Argument(help="A checkpoint: a folder, a hub id or a .gguf file.")],
    length: Annotated[int | None, typer.Option(help="Tokens of each sequence; 512 unless told.")] = None,
    seed: Annotated[int, typer.Option(help="What every random draw follows from; 0 or more.")] = SEED,
    text: Annotated[
        Path | None,
        typer.Option(
            help="A text of yours, to scan beside drawn tokens.", parser=_named("--text"), metavar="PATH"
        ),
    ] = None,
    scan_only: Annotated[bool, typer.Option("--scan-only", help="Take no heads out: the dear part.")] = False,
    beyond: Annotated[
        bool, typer.Option("--beyond", help="Let --length pass the context that the model declares.")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the data there, by whyformer/heads/1.", parser=_named("--json"), metavar="PATH"
        ),
    ] = None,
) -> int:
    """Scan every head of a model for routing, and test by ablation what is found."""
    _check_seed(seed)
    if json is not None:
        from whyformer.report.schema import check_writable

        _check_kept(json, target, text)
        check_writable(json)

    from whyformer.heads import examine

    data = examine(
        target,
        length=length,
        seed=seed,
        text=text,
        ablate=not scan_only,
        beyond=beyond,
        progress=_doing if _on_a_terminal() else None,
    )
    if json is not None:
        from whyformer.report.schema import write_data

        write_data(data, json)
    from whyformer.report.heads import heads_view

    _show(heads_view(data))
    return 0


@app.command()
def replay(
    report: Annotated[Path, typer.Argument(help="A report that an audit wrote with --json.")],
) -> int:
    """Run the counterexamples of a stored report again, on the target that it names."""
    from whyformer.report.replay import counts, read_report, replay_view, stands

    told = read_report(report)
    with _importing():
        from whyformer.auditing import replay as run_again
    met = run_again(told)
    _show(replay_view(met))
    return 1 if any(stands(*each) and counts(each[0]) for each in met) else 0


@app.command()
def claims(
    claim: Annotated[str | None, typer.Argument(help="The id of one claim, to explain it.")] = None,
) -> int:
    """List the claims, or explain one: its mathematics, its test, what breaks it, its source."""
    with _importing():
        from whyformer import claims as registry
        from whyformer.lab import listing

        if claim is None:
            told = listing.all_claims(
                {
                    "Proved by the lab": registry.catalogue(),
                    "Tried by the audit on any model": registry.audit_catalogue(),
                }
            )
        else:
            told = listing.one_claim(registry.find(claim))
    _show(told)
    return 0


@app.command()
def wire(
    architecture: Annotated[
        str, typer.Argument(help="gpt2, llama, mistral, qwen2, qwen3, gemma or gpt_neox.", metavar="ARCH")
    ],
    vocab: Annotated[int, typer.Option(help="How many ids, the first token and the pad among them.")],
    context: Annotated[int, typer.Option(help="The longest sequence, the first token included.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    circuit: Annotated[str, typer.Option(help="induction, two-hop or copy.")] = "induction",
    prefix: Annotated[
        int | None,
        typer.Option(
            help="For copy: how many tokens stand before the separator; without it, gpt2 finds its separator."
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Which of several twins counts: recent, or agree; unless told otherwise, recent where that "
            "can be certified."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    tied: Annotated[
        bool | None, typer.Option("--tied/--untied", help="Whether one table reads and writes tokens.")
    ] = None,
    theta: Annotated[
        float | None, typer.Option(help="The rotary base; the first that serves unless told otherwise.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="A sliding window, for mistral.")] = None,
    gguf: Annotated[bool, typer.Option("--gguf", help="Write a GGUF file too, for llama.cpp.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that was wired before.")] = False,
) -> int:
    """Write a stock checkpoint whose right answer is known for every sequence, with the certificate."""
    with _importing():
        from whyformer.wire.certificate import summary
        from whyformer.wire.forge import wire as forge

    told = forge(
        architecture,
        vocabulary=vocab,
        context=context,
        out=out,
        circuit=circuit,
        prefix=prefix,
        rule=rule,
        dtype=dtype,
        tied=tied,
        theta=theta,
        window=window,
        gguf=gguf,
        force=force,
        progress=_doing if _on_a_terminal() else None,
    )
    _show([f"Wired {out}", *summary(told)])
    return 0


@app.command()
def certify(
    folder: Annotated[Path, typer.Argument(help="A folder that 'whyformer wire' wrote.")],
) -> int:
    """Prove a wired folder's certificate again, from its stored weights alone.

    Exit status: 0 it holds, 1 it does not, 2 there is none that can be read.
    """
    with _importing():
        from whyformer.wire.certificate import certify as prove
        from whyformer.wire.certificate import summary
        from whyformer.wire.family import UnfitError

    try:
        told = prove(folder)
    except UnfitError as error:
        _show([f"The certificate does not hold. {error}"])
        return 1
    _show([f"The certificate holds: {folder}", *summary(told)])
    return 0


@app.command()
def drill(
    folder: Annotated[Path, typer.Argument(help="A folder that 'whyformer wire' wrote.")],
    engine: Annotated[
        str, typer.Option(help="transformers, llama.cpp or openai:URL, a completions server.")
    ] = "transformers",
    length: Annotated[
        int | None, typer.Option(help="The longest sequence; the certificate's context by default.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many sequences.")] = 200,
    seed: Annotated[int, typer.Option(help="What every random draw follows from; 0 or more.")] = SEED,
    chunk: Annotated[
        int | None, typer.Option(help="transformers: read prompts so many tokens at a time.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="A server: send words in place of ids.")] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            help="Write the report there, by whyformer/drill/1.", parser=_named("--json"), metavar="PATH"
        ),
    ] = None,
) -> int:
    """Play sequences whose answer is certified through an engine, and show the smallest that it fails.

    Exit status: 0 every promise was kept, 1 one was not, 2 the folder or the engine cannot be used.
    """
    _check_seed(seed)
    if json is not None:
        from whyformer.report.schema import check_writable

        check_writable(json)
    with _importing():
        from whyformer.wire.drill import drill as play
        from whyformer.wire.drill import lines

    told = play(
        folder,
        engine,
        length=length,
        count=count,
        seed=seed,
        chunk=chunk,
        words=words,
        progress=_doing if _on_a_terminal() else None,
    )
    if json is not None:
        from whyformer.report.schema import write_data

        write_data(told, json)
    _show(lines(told))
    return 0 if told["failure"] is None else 1


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise UsageError(f"--seed {seed}", "a seed is 0 or more", f"try --seed {SEED}")


@contextmanager
def _importing() -> Iterator[None]:
    """Leave at once on Ctrl-C: what is raised inside an import of torch, other code may catch and forget."""

    def leave(_signal: int, _frame: object) -> None:
        os._exit(_say("interrupted", 130))

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_own_input(
    sequence: str | None, text: Path | None, vocab: int | None, by: Unit | None, context: int | None
) -> None:
    """Refuse two inputs, and an option that says how an input is read which is not there."""
    if sequence is not None and text is not None:
        raise UsageError("--sequence with --text", "one input is read at a time", "leave one of them out")
    for option, value, needs, there in (
        ("--vocab", vocab, "--sequence", sequence is not None),
        ("--by", by, "--text", text is not None),
        ("--context", context, "--sequence or --text", sequence is not None or text is not None),
    ):
        if value is not None and not there:
            raise UsageError(option, f"it says how {needs} is read", f"add {needs}, or leave it out")


def _check_kept(json: Path, target: str, text: Path | None) -> None:
    """Refuse a report in the place of what is read: the text, or a file of the target."""
    if text is not None and _same_file(json, text):
        raise UsageError(f"--json {json}", "it would replace the text that is read", "name another file")
    place = Path(target.rpartition(":")[0] or target).expanduser()
    own = list(place.iterdir()) if place.is_dir() else [place]
    if json.exists() and any(_same_file(json, path) for path in own):
        raise UsageError(f"--json {json}", "it would replace a file of the target", "name another file")


def _same_file(one: Path, other: Path) -> bool:
    """Whether both name one file, by whatever links."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def _show(parts: Iterable[RenderableType]) -> None:
    """Print at most 80 columns wide, in colour where the terminal has it; quiet when nobody reads on."""
    from rich.console import Console

    from whyformer.report.encodings import carried
    from whyformer.report.terminal import WIDTH

    if sys.stdout is None:
        raise UsageError("the output", "it is closed", "send it to a terminal or to a file")
    encoding = sys.stdout.encoding or "utf-8"
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH)
    try:
        for part in parts:
            with console.capture() as captured:
                console.print(carried(part, encoding))
            sys.stdout.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            why = f"cannot be written: {error.strerror}"
            raise UsageError("the output", why, "send it to a terminal or to a file with room") from error


def _progress(read: int, total: int) -> None:
    """How much of a long text is read, on a line of stderr that whatever comes next writes over."""
    sys.stderr.write(f"{read / total:4.0%} read\r" if read < total else " " * 9 + "\r")
    sys.stderr.flush()


def _trying(claim: str, done: int, total: int) -> None:
    """Which claim is tried, on a line of stderr that whatever comes next writes over."""
    line = f"{done + 1}/{total} {claim}" if claim else ""
    sys.stderr.write(f"{line:<40}\r" if claim else " " * 40 + "\r")
    sys.stderr.flush()


def _on_a_terminal() -> bool:
    """Whether somebody watches what is written to stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def _doing(step: str) -> None:
    """What is done, on a line of stderr that whatever comes next writes over."""
    sys.stderr.write(f"{step:<50}\r" if step else " " * 50 + "\r")
    sys.stderr.flush()


def _say(line: str, status: int) -> int:
    """One line on stderr, whatever was in it; returns the status to exit with."""
    if sys.stderr is None:
        return status
    from whyformer.report.terminal import safe

    sys.stderr.write(f"whyformer: {safe(' '.join(line.split()))}\n")
    sys.stderr.flush()
    return status


def _command(arguments: list[str]) -> str:
    """The command that was called, with a space after it; empty where none was."""
    named = [argument for argument in arguments[:1] if argument in COMMANDS]
    return f"{named[0]} " if named else ""
