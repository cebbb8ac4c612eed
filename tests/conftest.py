"""Fixtures and hooks for every test: a clean environment, a cache of its own, and a check that Vulkan tests ran.

With RLX_REQUIRE_VULKAN=1 (set by `make test`) a run in which no Vulkan test passed is a failed run, however
many others passed: a missing driver must not look like a green suite. With RLX_REQUIRE_JUDGES=1 (set by `make judges`)
a test that skips is a failed test, for the same reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Rewriting the tests' assertions takes most of the time before the first test. So bytecode is kept, in a folder of its
# own if the environment forbids bytecode; this is set before anything is imported that has none yet.
if sys.dont_write_bytecode:
    sys.pycache_prefix = str(Path(__file__).resolve().parent.parent / ".cache/bytecode")
    sys.dont_write_bytecode = False

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from tests.full import FULL_ENV, full, leave_out, on_cuda, on_vulkan, select

# The examples are the same in every CI run, so that a red run repeats; elsewhere they vary, to find more.
settings.register_profile(
    "rlx",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rlx")

# Most tests run a kernel once, so on Mesa's software driver compiling costs more than running. Without optimizations it
# takes two thirds of the time; `make test-all` and `make judges` keep the driver's own setting.
_QUICK_DRIVER = ("GALLIVM_PERF", "nopt")

_COLLECTED_AFTER = 20_000  # objects more than there were before

# Variables that a developer may have set and that would change the tests' results.
_USER_SETTINGS = ("RLX_DEVICE", "RLX_DEBUG", "RLX_CUDA_PTX_CACHE", "RLX_TUNING")


class VulkanCount:
    """How many tests marked `vulkan` passed and were skipped, and why any were; lives in the process that reports."""

    def __init__(self, required: bool) -> None:
        self.required = required
        self.passed = 0
        self.skipped = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "vulkan" not in report.keywords:
            return
        if report.when == "call" and report.passed:
            self.passed += 1
        elif report.skipped:
            self.skipped += 1

    @property
    def missing(self) -> bool:
        return self.required and self.passed == 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.missing and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        reasons = Counter(
            str(report.longrepr[2]).removeprefix("Skipped: ")
            for report in terminalreporter.stats.get("skipped", ())
            if isinstance(report.longrepr, tuple)
        )
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count} skipped: {reason}")
        if self.missing:
            terminalreporter.section("Vulkan was not exercised", red=True)
            terminalreporter.line(
                f"RLX_REQUIRE_VULKAN is set and no Vulkan test passed ({self.skipped} skipped). "
                "Install a driver (Debian, Ubuntu: mesa-vulkan-drivers) or unset it."
            )


def _set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def _skips_fail(report: pytest.TestReport | pytest.CollectReport, judged: bool) -> None:
    """Where judges are required a skip fails. Elsewhere a skip for want of a judge fails if `make judges` would not run
    the test."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if _set("RLX_REQUIRE_JUDGES"):
        report.outcome, report.longrepr = "failed", f"{report.nodeid} may not skip here. {reason}"
    elif "`make judges`" in reason and not judged:
        report.outcome, report.longrepr = "failed", f"{report.nodeid} must be marked `judged`. {reason}"


_passed: list[tuple[str, tuple[str, int | None, str], bool, float]] = []  # passed tests that are not reported yet
_AT_ONCE = 24


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Reports tests that passed in a worker together, with a later report: the five messages of a report take longer
    than a small test. If a worker dies, the run fails, since fewer tests are counted."""
    if not hasattr(item.config, "workerinput") or item.config.option.xmlpath or item.config.option.verbose > 0:
        return None
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if all(report.passed for report in reports):
        reports = [report for report in reports if report.when == "call"]
        if nextitem is not None and len(_passed) < _AT_ONCE:
            _passed.extend((r.nodeid, r.location, "vulkan" in r.keywords, r.duration) for r in reports)
            return True
    for report in reports:
        report.passed_before = [*_passed]
        _passed.clear()
        item.ihook.pytest_runtest_logreport(report=report)
    return True


class CpuForms:
    """Which forms of the CPU's kernels ran, and why others were skipped; lives in the process that reports."""

    def __init__(self) -> None:
        self.ran = set[str]()
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "tests/cpu/" not in report.nodeid:
            return
        from tests.cpu.processors import form_of  # which imports rlx, whose environment is made first

        form = form_of(report.nodeid)
        if form is None:
            return
        if report.when == "call" and not report.skipped:
            self.ran.add(form)
        elif report.skipped and isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            self.skipped.setdefault(form, reason.removeprefix(f"{form}: "))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.ran or self.skipped:
            from tests.cpu.processors import told

            terminalreporter.line(told(self.ran, self.skipped))


class PassedBefore:
    """In the reporting process, makes the reports of tests whose results came with a later test's report."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        for nodeid, location, vulkan, duration in report.__dict__.pop("passed_before", ()):
            keywords = {"vulkan": 1} if vulkan else {}
            made: Any = pytest.TestReport(nodeid, location, keywords, "passed", None, "call", duration=duration)
            made.node = report.node
            self.config.hook.pytest_runtest_logreport(report=made)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    outside: Any = sys.modules.get("tests.outside")
    if outside is not None:
        outside.running = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _skips_fail(report, "judged" in item.keywords)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _skips_fail(report, judged=True)  # a module that skips as a whole has no marks
    return report


def pytest_configure(config: pytest.Config) -> None:
    for name in _USER_SETTINGS:
        os.environ.pop(name, None)
    if hasattr(config, "workerinput"):
        return  # a worker of pytest-xdist inherits the environment that the reporting process made
    if not full():
        os.environ.setdefault(*_QUICK_DRIVER)
    # Tests run thousands of small programs once each, for which compiling kernels takes longer than NumPy does. Tests
    # of the engine turn it on.
    os.environ.setdefault("RLX_CPU", "numpy")
    cache = tempfile.mkdtemp(prefix="rlx-test-cache-")
    os.environ["RLX_CACHE_DIR"] = cache
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))
    config.pluginmanager.register(PassedBefore(config), "rlx-passed-before")
    config.pluginmanager.register(CpuForms(), "rlx-cpu-forms")
    config.pluginmanager.register(VulkanCount(_set("RLX_REQUIRE_VULKAN")), "rlx-vulkan-count")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector away from the objects made by collection, which live to the end of the run. Later it
    runs less often than usual, since a compiled graph has thousands of objects that its next run would not free."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
        gc.enable()


def _leave_out_cuda(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests on a CUDA device where CuPy is not installed, instead of reporting thousands of skips."""
    if importlib.util.find_spec("cupy") is not None or any("::" in arg for arg in config.args):
        return
    leave_out(config, items, on_cuda)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each case parametrized over devices by the device that its id names. `-k` and `-m` select next, before
    pytest orders thousands of tests that will not run and Hypothesis reads the modules that they stand in."""
    _leave_out_cuda(config, items)
    select(config, items)
    for item in items:
        if on_vulkan(item):
            item.add_marker(pytest.mark.vulkan)
    if selects := config.pluginmanager.get_plugin("mark"):
        selects.pytest_collection_modifyitems(items=items, config=config)


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def clean_env(tmp_path: Path) -> dict[str, str]:
    """An environment for subprocesses that find neither this process's settings nor its import path."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLX_", "PYTHON", "PYTEST", "COV"))}
    env |= {FULL_ENV: "1"} if full() else {}
    env["RLX_CACHE_DIR"] = str(tmp_path / "cache")
    return env


@pytest.fixture(autouse=True)
def _pipes_stay_as_they_are() -> Generator[None, None, None]:
    """Restores SIGPIPE's action: commands set the default one, by which a client that disconnects ends this process."""
    before = signal.getsignal(signal.SIGPIPE)
    yield
    if signal.getsignal(signal.SIGPIPE) is not before:
        signal.signal(signal.SIGPIPE, before)
