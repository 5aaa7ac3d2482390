"""A pytest plugin: ``pytest --whyformer-model TARGET`` tries a model's claims, one test each, without a file.

Nothing here imports torch until a target is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import collect_one_node

from whyformer.errors import UsageError, WhyformerError
from whyformer.finding import Verdict

if TYPE_CHECKING:
    from whyformer.finding import Finding, Report
    from whyformer.subjects.subject import Subject


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options, in a group of their own."""
    group = parser.getgroup("whyformer", "whyformer: try a model's claims, one test each")
    group.addoption("--whyformer-model", action="append", metavar="TARGET", default=[],
                    help="file.py:NAME, package:NAME or a checkpoint; give it again for more")  # fmt: skip
    group.addoption("--whyformer-tokens", type=int, metavar="V", help="a module that reads tokens: how many")
    group.addoption("--whyformer-width", type=int, metavar="D", help="a module that reads vectors: how wide")
    group.addoption("--whyformer-claim", action="append", metavar="ID[=VALUE]", default=[],
                    help="a claim to try; without it, all that the model promises")  # fmt: skip
    group.addoption("--whyformer-length", type=int, metavar="T", help="how long an ordinary input is")
    group.addoption("--whyformer-seed", type=int, metavar="N", default=31, help="what draws follow from")
    group.addoption("--whyformer-json", metavar="FILE", help="write the reports there, one a target")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a report that cannot be written before any test has run."""
    file = config.getoption("--whyformer-json")
    if file and not hasattr(config, "workerinput"):
        from whyformer.report.schema import check_writable

        try:
            check_writable(Path(file), "--whyformer-json")
        except WhyformerError as error:
            raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of every target."""
    for target in config.getoption("--whyformer-model"):
        model = Model.from_parent(session, name=f"whyformer::{target}", nodeid=f"whyformer::{target}")
        model.target = target
        report = collect_one_node(model)
        config.hook.pytest_collectreport(report=report)
        items.extend(item for item in report.result if isinstance(item, pytest.Item))


class Model(pytest.Collector):
    """A target, examined once when the first of its tests runs."""

    target: str
    subject: Subject | None = None
    report: Report | WhyformerError | None = None

    def collect(self) -> Iterator[pytest.Item]:
        """One test a claim that counts; one test that fails where the target does not load."""
        try:
            names = self.claims()
        except WhyformerError as error:
            self.report, names = error, ["loads"]
        for name in names:
            yield Claimed.from_parent(self, name=name)

    def claims(self) -> list[str]:
        """The claims asked for, or those that the target promises."""
        from whyformer.claims import parse
        from whyformer.subjects.targets import load

        tokens, width, seed = (self.config.getoption(f"--whyformer-{o}") for o in ("tokens", "width", "seed"))
        self.subject = load(self.target, tokens=tokens, width=width, seed=seed)
        asked = self.config.getoption("--whyformer-claim")
        for claim in asked:
            parse(claim)
        promises = self.subject.traits.promised.items()
        return asked or [claim if value is None else f"{claim}={value}" for claim, (value, _) in promises]

    def finding(self, name: str) -> Finding:
        """What came of a claim; the whole audit runs when the first is asked for."""
        from whyformer.auditing import PartialReportError, audit

        if self.report is None and self.subject is not None:
            length, seed = (self.config.getoption(f"--whyformer-{o}") for o in ("length", "seed"))
            names = [item.name for item in self.session.items if item.parent is self]
            try:
                self.report = audit(self.subject, claims=names, length=length, seed=seed)
            except PartialReportError as error:
                self.report = error.report
            except WhyformerError as error:
                self.report = error
            self.write()
        if self.report is None or isinstance(self.report, WhyformerError):
            raise self.report or UsageError(self.target, "it was not examined", "run its tests again")
        claim, _, value = name.partition("=")
        for finding in self.report.findings:
            if finding.claim == claim and (not value or finding.value == int(value)):
                return finding
        raise UsageError(name, "the audit ended before it", "run it by itself")

    def write(self) -> None:
        """Write the report beside the others, where a file is named."""
        file = self.config.getoption("--whyformer-json")
        if file and self.report is not None and not isinstance(self.report, WhyformerError):
            from whyformer.report.schema import write_json

            targets = self.config.getoption("--whyformer-model")
            place = Path(file)
            if len(targets) > 1:
                place = place.with_stem(f"{place.stem}-{targets.index(self.target) + 1}")
            write_json(self.report, place)


class Claimed(pytest.Item):
    """One claim about one target."""

    def runtest(self) -> None:
        """Pass where it holds, skip where it does not apply, else fail with the witness or the reason."""
        from whyformer.testing import ClaimError

        if not isinstance(self.parent, Model):
            raise TypeError("a claim is about a model")
        finding = self.parent.finding(self.name)
        if finding.verdict is Verdict.INAPPLICABLE:
            pytest.skip(finding.reason or "it does not apply")
        if finding.verdict is not Verdict.HOLDS:
            raise ClaimError(finding)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The witness, or the one line of an unusable target; a traceback only for a fault of our own."""
        if isinstance(excinfo.value, WhyformerError):
            return re.sub(
                r"--(?=(tokens|width|length|seed|claim|json)\b)", "--whyformer-", str(excinfo.value)
            )
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where the test stands: under its target."""
        target = self.parent.target if isinstance(self.parent, Model) else ""
        return target, None, f"{target} {self.name}"
