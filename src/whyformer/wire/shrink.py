"""Play cases through an engine, find what it gets wrong, and leave out what a failure does not need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from whyformer.errors import UsageError
from whyformer.wire.cases import Case, promised
from whyformer.wire.engines import Engine
from whyformer.wire.wired import Wired

_BATCH = 2**13  # tokens that an engine is given at a time
_BUDGET = 2**18  # tokens that are spent on making a failure smaller, or this many times its length:
_LEAST = 16


@dataclass(frozen=True)
class Failure:
    """A case that an engine got wrong.

    Attributes:
        case: up to the first wrong token.
        heard: what the engine said; its last token, or the lack of one, is wrong.
    """

    case: Case
    heard: tuple[int, ...]

    @property
    def length(self) -> int:
        """How many tokens are read before the wrong one."""
        return len(self.case.prompt) + len(self.case.answers) - 1


def play(engine: Engine, drawn: Sequence[Case]) -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Each case with what the engine went on with, in batches of one length, from the shortest."""
    groups: dict[tuple[int, int], list[Case]] = {}
    for case in drawn:
        groups.setdefault((len(case.prompt), len(case.answers)), []).append(case)
    for (long, new), members in sorted(groups.items(), key=lambda group: group[0]):
        size = max(1, _BATCH // (long + new))
        for start in range(0, len(members), size):
            part = members[start : start + size]
            heard = [tuple(map(int, said)) for said in engine([case.prompt for case in part], new)]
            if len(heard) != len(part):
                why = f"it answered {len(heard)} of {len(part)} prompts"
                raise UsageError("the engine", why, "return a list of ids for each prompt")
            yield from zip(part, heard, strict=True)


def fault(case: Case, heard: tuple[int, ...]) -> Failure | None:
    """Where the engine first differs from the promise."""
    for i, answer in enumerate(case.answers):
        if i >= len(heard) or heard[i] != answer:
            return Failure(Case(case.kind, case.prompt, case.answers[: i + 1]), heard[: i + 1])
    return None


def shrink(wired: Wired, engine: Engine, failure: Failure) -> Failure:
    """A failure from which no token can be left out, or the smallest within a budget of tokens.

    What was decoded is read in the prompt where that fails too; then parts of the prompt are left out, half
    of it, a quarter, down to single tokens, as in delta debugging, as long as what remains fails. Last, words
    that play no part become one.
    """
    purse = _Purse(engine, max(_BUDGET, _LEAST * failure.length))
    case, best = failure.case, failure
    read = [case.prompt + case.answers[:i] for i in range(len(case.answers))]
    moved = (promised(wired, case.kind, prompt, 1) for prompt in reversed(read))
    best = purse.first_failure(moved) or failure
    start = 0 if wired.first is None else 1
    size = max(1, len(best.case.prompt) // 2)
    while purse.left > 0:
        prompt, new = best.case.prompt, len(best.case.answers)
        without = (prompt[:at] + prompt[at + size :] for at in range(start, len(prompt), size))
        found = purse.first_failure(
            promised(wired, case.kind, less, new) for less in without if len(less) > start
        )
        if found is not None:
            best = found
            size = min(size, max(1, len(best.case.prompt) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    alike = (promised(wired, case.kind, prompt, 1) for prompt in _alike(best.case, start))
    return (purse.first_failure(alike) if len(best.case.answers) == 1 else None) or best


def _alike(case: Case, start: int) -> Iterator[tuple[int, ...]]:
    """The prompt with one word in place of all others, but for the last and, at second best, the answer."""
    last = case.prompt[-1]
    for kept in ({last}, {last, *case.answers}):
        for word in sorted(set(case.prompt[start:]) - kept):
            yield case.prompt[:start] + tuple(t if t in kept else word for t in case.prompt[start:])


@dataclass
class _Purse:
    """An engine, and how many tokens it may still be given."""

    engine: Engine
    left: int

    def first_failure(self, tried: Iterable[Case | None]) -> Failure | None:
        """The first case that fails, of those that something is promised for; as many as can be afforded."""
        batch: list[Case] = []
        tokens = 0
        for case in tried:
            if case is None or self.left <= 0:
                continue
            batch.append(case)
            tokens += len(case.prompt)
            self.left -= len(case.prompt)
            if tokens >= _BATCH:
                if found := self._played(batch):
                    return found
                batch, tokens = [], 0
        return self._played(batch)

    def _played(self, batch: Sequence[Case]) -> Failure | None:
        return next((found for one, heard in play(self.engine, batch) if (found := fault(one, heard))), None)
