"""The matching head's lookup over a million keys, against the two matrix-vector products that it needs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from whyformer.subjects.induction import LOCAL, InductionCircuit, lookup

KEYS = 1_000_000
VOCABULARY = 64
ROUNDS = 15
GAPS = (1, 2, 3, 10, 1_000, 65_536, 524_287, KEYS - 2, KEYS - 1)
"""From the query, which is the last token, back to its twin."""
LIMITS = {
    "lookup / (K @ q, w @ V)": 1.5,
    "gaps answered wrongly": 0.0,
    "memory per key, of 4 times the keys / of the keys": 1.1,
}
"""The most that each figure of ``main`` may be."""


def head(circuit: InductionCircuit, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matching head's query for the last token, and its keys and values for all: (w,), (n, w), (n, v)."""
    chunk, time_ = 8 * LOCAL, len(tokens)
    padding = -time_ % chunk
    codes = circuit.code[tokens]
    content = torch.cat(
        [codes.new_zeros(LOCAL, circuit.width), codes, codes.new_zeros(padding, circuit.width)]
    )
    # chunks, positions, width: positions count modulo LOCAL, so one call serves every chunk
    chunks = content.unfold(0, LOCAL + chunk, chunk).mT
    previous = circuit.previous(chunks, torch.arange(-LOCAL, chunk))[:, LOCAL:]
    places = torch.arange(time_)
    keys = circuit.keys(previous.reshape(-1, circuit.width)[:time_], places)
    query = circuit.queries(codes[-1:], places[-1:])[0]
    symbols = torch.cat([torch.tensor([circuit.nothing]), tokens])
    values = torch.nn.functional.one_hot(symbols, circuit.vocabulary + 1).to(circuit.dtype)
    return query, keys, values


def sequence(length: int, gap: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """Random tokens, where the last one, 0, has one twin, ``gap`` before it; and the token after the twin."""
    tokens = torch.randint(1, VOCABULARY, (length,), generator=generator)
    tokens[-1] = tokens[-1 - gap] = 0
    return tokens, int(tokens[length - gap])


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def allocated(query: Tensor, keys: Tensor, values: Tensor) -> int:
    """Bytes that one lookup allocates, freed or not: no less than its peak."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        lookup(query, keys, values)
    return sum(max(event.self_cpu_memory_usage, 0) for event in watched.key_averages())


def main() -> Iterator[tuple[str, float]]:
    """The figures that ``LIMITS`` bounds, and the milliseconds behind them."""
    generator = torch.Generator().manual_seed(31)
    circuit = InductionCircuit(VOCABULARY, KEYS)
    wrong = 0
    for gap in GAPS:
        tokens, answer = sequence(KEYS, gap, generator)
        query, keys, values = head(circuit, tokens)
        wrong += int(lookup(query, keys, values).argmax()) != answer
    weights = torch.softmax(keys @ query, dim=0)
    whole, products = [], []
    for _ in range(ROUNDS):
        products.append(seconds(lambda: (keys @ query, weights @ values)))
        whole.append(seconds(lambda: lookup(query, keys, values)))
    quarter = KEYS // 4
    bytes_whole, bytes_quarter = (allocated(query, keys[:n], values[:n]) for n in (KEYS, quarter))
    yield "lookup / (K @ q, w @ V)", statistics.median(whole) / statistics.median(products)
    yield "gaps answered wrongly", float(wrong)
    yield "memory per key, of 4 times the keys / of the keys", bytes_whole / (4 * bytes_quarter)
    yield "lookup, ms", statistics.median(whole) * 1e3
    yield "K @ q and w @ V, ms", statistics.median(products) * 1e3
    yield "bytes allocated per key", bytes_whole / KEYS
