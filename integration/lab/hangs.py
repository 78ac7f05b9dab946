"""A pytest plugin: a test that ran into its time limit ends the run with a status of its own.

Who runs failed tests once more, as a busy machine is late, leaves those out: a hang is a defect that may come but now
and then.
"""

import pytest

STATUS = 10
"""Pytest's own are 0 to 5."""
_SAID = "from pytest-timeout"


class Hangs:
    """Of one run."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and _SAID in report.longreprtext:
            self.tests.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.tests:
            session.exitstatus = STATUS

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self.tests:
            terminalreporter.write_line(f"RAN INTO ITS TIME LIMIT: {test}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Hangs())
