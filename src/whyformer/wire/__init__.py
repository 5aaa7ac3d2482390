"""Wired checkpoints: stock architectures whose right answer is known for every sequence, with the proof.

A folder that ``wire`` writes holds
    config.json, model.safetensors, generation_config.json   a stock checkpoint, for any engine
    tokenizer.json, tokenizer_config.json                    its words; the first token is put before a text
    certificate.json                                         what is promised, and by what margins

``certify`` proves the certificate again from what is stored. ``Wired.open`` is the seam for whatever plays
such a folder through an engine: its vocabulary, its rule, its promises, and the right answer to a sequence.

The files, from the bottom: ``codes`` (the words), ``rotary`` and ``scores`` (margins over distances, and
rounding), ``circuit`` (what is built), ``residual`` and ``layout`` (subspaces and heads), ``induction``,
``copying`` and ``separator`` (the designs), ``family`` with ``llama``, ``gpt2``, ``neox`` (how it is stored),
``stream``, ``layer``, ``looking``, ``matching``, ``placing``, ``logits`` and ``proof`` (why it is right),
``reading``, ``settings``, ``replacing``, ``folder`` and ``certificate`` (on disk), ``forge`` (``wire``
itself), ``playable`` and ``wired`` (what is promised).

Importing this package imports torch only when a name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyformer.wire.certificate import certify as certify
    from whyformer.wire.forge import wire as wire
    from whyformer.wire.wired import Wired as Wired

__all__ = ["Wired", "certify", "wire"]
_HOMES = {"certify": "certificate", "wire": "forge", "Wired": "wired"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(f"whyformer.wire.{_HOMES[name]}"), name)
