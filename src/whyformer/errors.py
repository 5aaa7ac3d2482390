"""The errors that whyformer raises on purpose: each is one line that says what, why and the mend."""

from __future__ import annotations


class WhyformerError(Exception):
    """The call or the target is unusable; a door prints the line and exits with status 2.

    Args:
        what: what was asked, or what was met ("--seed -3").
        why: why it cannot be used ("a seed is 0 or more").
        mend: what to do instead ("try --seed 31").
    """

    def __init__(self, what: str, why: str, mend: str) -> None:
        super().__init__(what, why, mend)
        self.what, self.why, self.mend = what, why, mend

    def __str__(self) -> str:
        return " ".join(f"{self.what}: {self.why}; {self.mend}".split())


class UsageError(WhyformerError):
    """An argument that cannot be used: out of range, of the wrong kind, or unreadable."""


class MissingExtraError(WhyformerError):
    """A library of an optional extra is not installed.

    Args:
        library: the distribution that could not be imported.
        extra: the extra of whyformer that installs it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(library, "is not installed", f"pip install 'whyformer[{extra}]'")
        self.library, self.extra = library, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.library, self.extra)
