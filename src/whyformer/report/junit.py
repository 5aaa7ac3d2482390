"""A report as JUnit XML, for the many tools that read test results."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from whyformer.finding import Finding, Report, Verdict
from whyformer.report.schema import replace_file
from whyformer.report.terminal import finding_text, safe


def to_xml(report: Report) -> bytes:
    """The report as one test suite, a test case a finding.

    A claim that is refuted is a failure, one that is inconclusive an error, one that does not apply is
    skipped. What was only observed fails nothing: it stands as a test that passed, and says what was seen.
    """
    name = safe(str(report.subject.get("name", "")))
    kinds = [_kind(finding) for finding in report.findings]
    suite = Element("testsuite", name=f"whyformer {name}", tests=str(len(kinds)))
    for kind, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(count, str(kinds.count(kind)))
    for finding, kind in zip(report.findings, kinds, strict=True):
        value = "" if finding.value is None else f"={finding.value}"
        case = SubElement(suite, "testcase", classname=name, name=f"{finding.claim}{value}")
        text = finding_text(finding)
        if kind == "passed":
            SubElement(case, "system-out").text = text
        else:
            SubElement(case, kind, message=safe(finding.reason or ""), type=str(finding.verdict)).text = text
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def write_junit(report: Report, path: Path) -> None:
    """Write the XML whole or not at all.

    Raises:
        UsageError: nothing can be written there.
    """
    replace_file(path, to_xml(report), "--junit")


def _kind(finding: Finding) -> str:
    if finding.verdict is Verdict.INAPPLICABLE:
        return "skipped"
    if (finding.path or {}).get("basis") == "observed":
        return "passed"
    return {Verdict.REFUTED: "failure", Verdict.INCONCLUSIVE: "error"}.get(finding.verdict, "passed")
