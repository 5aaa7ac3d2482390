"""CPU time and peak memory of a scan, against the plain forward and other ways to see attention.

Every figure comes from fresh processes, one of each way in turn. The model has the shape of SmolLM2-135M and
random weights, which cost the same. TransformerLens is measured where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

LENGTHS = (256, 1024, 2048, 4096, 8192)
ROUNDS = 7
LONG = 65_536
SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
PEERS = {"output_attentions": 2048, "TransformerLens": 2048}
"""The longest input that each is measured at: their patterns alone take 17 GiB at 4,096."""
LIMITS = (
    {f"scan / plain, CPU time, {length}": 0.85 if length <= 1024 else 0.90 for length in LENGTHS}
    | {f"scan / plain, peak memory, {length}": 0.80 for length in LENGTHS if length >= 2048}
    | {f"scan of 2 layers, peak GiB, {LONG}": 20.0}
)
"""The most that each figure of ``main`` may be."""


def model(layers: int, positions: int) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**SHAPE | {"num_hidden_layers": layers, "max_position_embeddings": positions})
    return AutoModelForCausalLM.from_config(config).eval()


def plain(length: int) -> Callable[[], object]:
    whole, ids = model(30, 8192), torch.randint(SHAPE["vocab_size"], (1, length))
    return lambda: whole(ids).logits


def output_attentions(length: int) -> Callable[[], object]:
    whole, ids = model(30, 8192), torch.randint(SHAPE["vocab_size"], (1, length))
    whole.set_attn_implementation("eager")
    return lambda: whole(ids, output_attentions=True).attentions


def scan(length: int, layers: int = 30) -> Callable[[], object]:
    from whyformer.instruments.heads import scan as every_head
    from whyformer.instruments.repeats import scattered
    from whyformer.malloc import keep_freed_memory

    keep_freed_memory()  # as the command does
    generator = torch.Generator().manual_seed(31)
    ids = torch.arange(SHAPE["vocab_size"])
    rows = scattered(1, length, ids, start=None, generator=generator)
    whole = model(layers, max(length, 8192))
    return lambda: every_head(whole, rows)


def transformer_lens(length: int) -> Callable[[], object]:
    from tokenizers import Tokenizer, models
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

    whole, ids = model(30, 8192), torch.randint(SHAPE["vocab_size"], (1, length))
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with tempfile.TemporaryDirectory() as at:  # it wants a config and a tokenizer on disk, whatever they are
        whole.config.save_pretrained(at)
        special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "a")
        PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(at)
        lens = TransformerBridge.boot_transformers(at, hf_model=whole)
    return lambda: lens.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"))


WAYS: dict[str, Callable[[int], Callable[[], object]]] = {
    "plain": plain,
    "scan": scan,
    "output_attentions": output_attentions,
    "TransformerLens": transformer_lens,
    "scan of 2 layers": lambda length: scan(length, layers=2),
}


def measure(way: str, length: int) -> None:
    """In a process of its own: seconds of CPU of one call, and the peak of the whole process in bytes."""
    with torch.inference_mode():
        call = WAYS[way](length)
        start = time.process_time()
        call()
        seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps([seconds, peak]))


def fresh(way: str, length: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.heads", way, str(length)]
    quiet = {"OMP_WAIT_POLICY": "PASSIVE", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | quiet)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def main(lengths: tuple[int, ...] = LENGTHS, rounds: int = ROUNDS) -> Iterator[tuple[str, float]]:
    """The figures that ``LIMITS`` bounds, and those of the peers as ratios to the plain forward."""
    for length in lengths:
        ways = ["plain", "scan", *(peer for peer, longest in PEERS.items() if length <= longest)]
        if importlib.util.find_spec("transformer_lens") is None and "TransformerLens" in ways:
            ways.remove("TransformerLens")
        met: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in ways:
                met[way].append(fresh(way, length))
        for way in ways[1:]:
            for at, what in enumerate(("CPU time", "peak memory")):
                # Each round's own ratio: what slows the machine for a while slows both sides of it.
                ratios = [one[at] / other[at] for one, other in zip(met[way], met["plain"], strict=True)]
                yield f"{way} / plain, {what}, {length}", statistics.median(ratios)
        seconds, peaks = zip(*met["plain"], strict=True)
        yield f"plain, CPU seconds, {length}", statistics.median(seconds)
        yield f"plain, peak GiB, {length}", statistics.median(peaks) / 2**30
    yield f"scan of 2 layers, peak GiB, {LONG}", fresh("scan of 2 layers", LONG)[1] / 2**30


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]))
