"""One claim of the audit tried on one module."""

import torch

from whyformer.claims.audit.probing import Asked
from whyformer.instruments.agreement import Examiner
from whyformer.subjects.torch_module import TorchModule


def tried(
    claim,
    module,
    *,
    width=None,
    seed=31,
    dtype=torch.float64,
    basis="asked",
    length=24,
    value=None,
    tokens=32,
):
    """The finding; the modules of the catalogue read 32 tokens where no width is said."""
    subject = TorchModule(module(), **({"tokens": tokens} if width is None else {"width": width}))
    with subject.precision(dtype):
        other = torch.float32 if dtype == torch.float64 else None
        asked = Asked(Examiner(subject, length, seed), value, basis, other)
        return claim(asked, torch.Generator().manual_seed(seed))
