"""From the words of a TARGET to the subject that they name.

``path/file.py:NAME`` and ``package.module:NAME`` are code, and are run, since they are named as code; a
folder, a hub id or a ``.gguf`` file is a checkpoint, and nothing in it is ever run.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from whyformer.errors import UsageError, WhyformerError
from whyformer.subjects.subject import Subject, raised
from whyformer.subjects.torch_module import TorchModule


def load(target: str, *, tokens: int | None = None, width: int | None = None, seed: int = 31) -> Subject:
    """The subject that a TARGET names.

    Args:
        target: ``path/file.py:NAME``, ``package.module:NAME``, or a checkpoint.
        tokens: the vocabulary of a module that reads tokens.
        width: the width of a module that reads vectors.
        seed: what torch's own generator is set to while the module is built.

    Raises:
        UsageError: it names nothing that can be examined; the line says what, why and the mend.
    """
    if is_code(target):
        module = load_module(target, seed)
        return subject_of(module, tokens=tokens, width=width, name=target.rpartition(":")[2], target=target)
    from whyformer.subjects.huggingface import load_checkpoint

    if width is not None:
        raise UsageError(f"--width {width}", "a checkpoint reads tokens", "leave it out")
    return load_checkpoint(target, tokens=tokens)


def subject_of(
    module: nn.Module,
    *,
    tokens: int | None = None,
    width: int | None = None,
    name: str | None = None,
    target: str | None = None,
) -> Subject:
    """A module as a subject: by its signature, or where it is a model of transformers by its config too.

    Args:
        module: what is examined.
        tokens: the vocabulary, where it reads tokens; a model of transformers tells its own.
        width: the width, where it reads vectors.
        name: what a reader calls it.
        target: where it was loaded from.

    Raises:
        UsageError: it is not said what a module reads, or its forward takes no input.
    """
    family = type(module).__mro__
    if width is None and any(c.__name__ == "PreTrainedModel" and _of_transformers(c) for c in family):
        from whyformer.subjects.checkpoints import in_memory
        from whyformer.subjects.huggingface import HuggingFace

        return HuggingFace(
            in_memory(module), name=name or type(module).__name__, target=target, tokens=tokens
        )
    return TorchModule(module, tokens=tokens, width=width, name=name, target=target)


def _of_transformers(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "transformers"


def is_code(target: str) -> bool:
    """Whether a TARGET names code, rather than a checkpoint.

    Raises:
        UsageError: it is empty, or a file of code without the name of what to take from it.
    """
    if not target:
        raise UsageError("the target ''", "it is empty", "name a folder, a GGUF file, a hub id, or code")
    if target.endswith(".py"):
        raise UsageError(target, "code is run only where NAME says what to take", f"say {target}:NAME")
    place, colon, name = target.rpartition(":")
    return bool(colon and place) and not Path(target).exists() and not name.startswith(("\\", "/"))


def load_module(target: str, seed: int) -> nn.Module:
    """The module that ``path/file.py:NAME`` or ``package.module:NAME`` names, built if need be.

    Raises:
        UsageError: no such file, package or name; the code raised; or what it names is no module.
    """
    place, _, name = target.rpartition(":")
    with _importable(place), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            found = _named(_code(target, place), target, name)
            return _built(found, target)
        except WhyformerError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(target, raised(error), "mend the code, or name something else") from error


def _code(target: str, place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and (place == error.name or place.startswith(error.name + ".")):
                raise UsageError(
                    target, f"there is no package {error.name}", "check its name, or install it"
                ) from error
            raise
    path = Path(place)
    if not path.is_file():
        raise UsageError(target, f"there is no file {place}", "check the path")
    # A name of its own, so that a file called json.py takes no other module's place.
    name = f"_whyformer_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(target, "it is not Python code", "name a .py file")
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code
    spec.loader.exec_module(code)
    return code


def _named(code: ModuleType, target: str, name: str) -> Any:
    if hasattr(code, name):
        return getattr(code, name)
    near = difflib.get_close_matches(name, [n for n in vars(code) if not n.startswith("_")], n=3)
    mend = f"near it: {', '.join(near)}" if near else "check the name"
    raise UsageError(target, f"there is no {name or 'name'} in it", mend)


def _built(found: Any, target: str) -> nn.Module:
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise UsageError(
                target, f"it is {type(found).__name__}, no module", "name an nn.Module, or what returns one"
            )
        needed = [
            p.name
            for p in inspect.signature(found).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if needed:
            raise UsageError(target, f"it needs {', '.join(needed)}", "name a function without arguments")
        found = found()
    if not isinstance(found, nn.Module):
        raise UsageError(target, f"it returned {type(found).__name__}, no module", "return an nn.Module")
    return found


@contextmanager
def _importable(place: str) -> Iterator[None]:
    """The folder of a file, or for a package the present one, on the import path while it loads."""
    folder = str(Path(place).resolve().parent) if place.endswith(".py") else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
