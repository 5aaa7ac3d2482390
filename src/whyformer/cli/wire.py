"""Wired checkpoints: write one, prove it again, play it through an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli.options import SEED, Seed, check_seed, path_option
from whyformer.cli.showing import doing, importing, on_a_terminal, show


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
    with importing():
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
        progress=doing if on_a_terminal() else None,
    )
    show([f"Wired {out}", *summary(told)])
    return 0


def certify(
    folder: Annotated[Path, typer.Argument(help="A folder that 'whyformer wire' wrote.")],
) -> int:
    """Prove a wired folder's certificate again, from its stored weights alone.

    Exit status: 0 it holds, 1 it does not, 2 there is none that can be read.
    """
    with importing():
        from whyformer.wire.certificate import certify as prove
        from whyformer.wire.certificate import summary
        from whyformer.wire.family import UnfitError

    try:
        told = prove(folder)
    except UnfitError as error:
        show([f"The certificate does not hold. {error}"])
        return 1
    show([f"The certificate holds: {folder}", *summary(told)])
    return 0


def drill(
    folder: Annotated[Path, typer.Argument(help="A folder that 'whyformer wire' wrote.")],
    engine: Annotated[
        str, typer.Option(help="transformers, llama.cpp or openai:URL, a completions server.")
    ] = "transformers",
    length: Annotated[
        int | None, typer.Option(help="The longest sequence; the certificate's context by default.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many sequences.")] = 200,
    seed: Seed = SEED,
    chunk: Annotated[
        int | None, typer.Option(help="transformers: read prompts so many tokens at a time.")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="A server: send words in place of ids.")] = False,
    json: Annotated[
        Path | None, path_option("--json", "Write the report there, by whyformer/drill/1.")
    ] = None,
) -> int:
    """Play sequences whose answer is certified through an engine, and show the smallest that it fails.

    Exit status: 0 every promise was kept, 1 one was not, 2 the folder or the engine cannot be used.
    """
    check_seed(seed)
    if json is not None:
        from whyformer.report.schema import check_writable

        check_writable(json)
    with importing():
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
        progress=doing if on_a_terminal() else None,
    )
    if json is not None:
        from whyformer.report.schema import write_data

        write_data(told, json)
    show(lines(told))
    return 0 if told["failure"] is None else 1
