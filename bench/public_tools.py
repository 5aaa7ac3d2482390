"""The two public tools that come nearest, on the catalogue's modules, each by its own documented use.

pangolinn offers causality and the padding of an encoder; pytest-torch offers invariance to the batch and to
padding, a stream of chunks against the whole, and equivariance to permutations. What a tool does not offer it
is not asked, and is not counted as missed. Neither is a dependency: they are tried where they are installed.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

Reads = tuple[str, int]
Trial = Callable[[Callable[..., nn.Module], Reads], bool]
"""Whether the tool finds nothing wrong."""


class NoCheckError(Exception):
    """The tool has no check for this module."""


def _inputs(reads: Reads, batch: int = 3, time: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(31)
    kind, size = reads
    if kind == "tokens":
        return torch.randint(3, size - 1, (batch, time), generator=generator)
    return torch.randn(batch, time, size, generator=generator)


def _first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def _passes(check: Callable[[], Any]) -> bool:
    try:
        check()
    except AssertionError:
        return False
    return True


def _parameters(module: nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def _takes_a_mask(module: nn.Module) -> None:
    if "attention_mask" not in _parameters(module):
        raise NoCheckError


def _contract(*checks: str) -> Trial:
    from pytest_torch import check_inference_contract

    return lambda make, reads: _passes(
        lambda: check_inference_contract(make().eval(), _inputs(reads), checks=checks)
    )


def _padding(make: Callable[..., nn.Module], reads: Reads) -> bool:
    """On the right, on the left of what decodes, and with other content there; positions are left out."""
    from pytest_torch import assert_mask_invariant, assert_padding_invariant

    module = make().eval()
    _takes_a_mask(module)
    name, x = _parameters(module)[0], _inputs(reads)
    ones = torch.ones(x.shape[:2], dtype=torch.int64)
    half = ones.clone()
    half[1:, -5:] = 0

    def check() -> None:
        for side in ("right", "left") if "past_key_values" in _parameters(module) else ("right",):
            assert_padding_invariant(module, {name: x, "attention_mask": ones}, side=side, ids_key=name)
        if reads[0] == "tokens":
            given = {name: x, "attention_mask": half}
            assert_mask_invariant(module, given, ids_key=name, vocab_size=reads[1])

    return _passes(check)


def _streaming(*sizes: int) -> Trial:
    from pytest_torch import assert_streaming_equivalent

    def trial(make: Callable[..., nn.Module], reads: Reads) -> bool:
        module = make().eval()

        def step(chunk: torch.Tensor, past: Any) -> Any:
            return module(chunk, past_key_values=past, use_cache=True)

        x = _inputs(reads)
        return _passes(
            lambda: assert_streaming_equivalent(module, step, x, chunk_sizes=sizes, init_state=lambda: None)
        )

    return trial


def _blind(make: Callable[..., nn.Module], reads: Reads) -> bool:
    from pytest_torch import assert_permutation_equivariant

    return _passes(lambda: assert_permutation_equivariant(make().eval(), _inputs(reads, time=12)))


def pytest_torch() -> dict[str, Trial]:
    """What pytest-torch offers, by the claim that it comes nearest to."""
    return {
        "routing.batch": _contract("batch_invariance"),
        "routing.repeatable": _contract("deterministic", "no_state_mutation"),
        "routing.padding": _padding,
        "routing.cache": _streaming(1),
        "routing.chunks": _streaming(7, 32, 5),
        "order.blind": _blind,
    }


def pangolinn() -> dict[str, Trial]:
    """What pangolinn offers, by the claim that it comes nearest to."""
    from pangolinn import seq2seq

    def wrapped(make: Callable[..., nn.Module], reads: Reads, masked: bool) -> type:
        kind, size = reads

        class Wrapper(seq2seq.PangolinnSeq2SeqModuleWrapper):
            num_input_channels = 1 if kind == "tokens" else size
            input_dtype = torch.int64 if kind == "tokens" else torch.float
            max_value_allowed = size - 1

            def build_module(self) -> nn.Module:
                return make()

            @property
            def num_output_channels(self) -> int:
                return _first(self._module(_inputs(reads, 1, 4))).shape[-1]

            def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
                x = x[..., 0] if kind == "tokens" else x
                mask = (torch.arange(x.shape[1])[None] < lengths[:, None]).long()
                return _first(self._module(x, attention_mask=mask) if masked else self._module(x))

        return Wrapper

    def run(case: type, wrapper: type, tests: list[str]) -> bool:
        suite_of = type("Case", (case,), {"module_wrapper_class": wrapper})
        suite = unittest.TestSuite(suite_of(test) for test in tests)
        result = unittest.TestResult()
        torch.manual_seed(31)
        suite.run(result)
        if result.errors:
            raise RuntimeError(result.errors[0][1].splitlines()[-1])
        return not result.failures

    def causal(make: Callable[..., nn.Module], reads: Reads) -> bool:
        """The test by gradients needs inputs that have them, which tokens do not."""
        tests = ["test_not_looking_at_the_future"]
        tests += ["test_gradient_not_flowing_from_future"] if reads[0] == "width" else []
        return run(seq2seq.CausalTestCase, wrapped(make, reads, False), tests)

    def padding(make: Callable[..., nn.Module], reads: Reads) -> bool:
        """Without its test that outputs at padding are zero, which it calls no issue on its own."""
        _takes_a_mask(make())
        wrapper = wrapped(make, reads, True)
        return run(seq2seq.EncoderPaddingTestCase, wrapper, ["test_batch_size_does_not_matter"])

    return {"routing.causal": causal, "routing.padding": padding}


def installed() -> dict[str, dict[str, Trial]]:
    """The tools that are here, by name and version."""
    offers = {"pytest-torch": pytest_torch, "pangolinn": pangolinn}
    here = {name: make for name, make in offers.items() if find_spec(name.replace("-", "_"))}
    return {f"{name} {version(name)}": make() for name, make in here.items()}
