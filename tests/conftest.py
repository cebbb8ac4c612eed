"""What holds for every test: a clean environment, a cache of its own, and proof that Vulkan was exercised.

With RLX_REQUIRE_VULKAN=1 (set by `make test`) a run in which no Vulkan test passed is a failed run, however
many others passed: a missing driver must not look like a green suite. With RLX_REQUIRE_JUDGES=1 (set by `make judges`)
a test that skips is a failed test, for the same reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Reading the tests' assertions anew takes longer than all else until the first test runs. So bytecode is kept, where
# the environment says otherwise in a folder of its own: set before anything is imported that is not compiled yet.
if sys.dont_write_bytecode:
    sys.pycache_prefix = str(Path(__file__).resolve().parent.parent / ".cache/bytecode")
    sys.dont_write_bytecode = False

import gc
import importlib.util
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from tests.full import FULL_ENV, full, spread

# The examples are the same in every CI run, so that a red run repeats; elsewhere they vary, to find more.
settings.register_profile(
    "rlx",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rlx")

# What the tests compute on Mesa's software driver they compute once, so that compiling costs more than running: it
# compiles without optimizations, in two thirds of the time. `make test-all` and `make judges` run it as it comes.
_QUICK_DRIVER = ("GALLIVM_PERF", "nopt")

_COLLECTED_AFTER = 20_000  # objects more than there were before

# What a developer may have set for their own work and would change what the tests see.
_USER_SETTINGS = ("RLX_DEVICE", "RLX_DEBUG", "RLX_CUDA_PTX_CACHE")
_DEVICE_IN_ID = re.compile(r"(?:^|[-\[_:])vulkan(?:$|[-\]_:\d])")


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


_passed: list[tuple[str, tuple[str, int | None, str], bool, float]] = []  # what a worker has yet to tell of
_AT_ONCE = 24


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker tells the reporting process of tests that passed with a later report: the five messages that each would
    make take longer than a small test. A worker that dies fails the run, which then counts fewer tests."""
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
    """Makes the reports of the tests that a worker tells of with a later one's."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        for nodeid, location, vulkan, duration in report.__dict__.pop("passed_before", ()):
            keywords = {"vulkan": 1} if vulkan else {}
            made: Any = pytest.TestReport(nodeid, location, keywords, "passed", None, "call", duration=duration)
            made.node = report.node
            self.config.hook.pytest_runtest_logreport(report=made)


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
    # Thousands of small programs, each used once: to compile kernels for them takes longer than NumPy. The tests of the
    # engine ask for it.
    os.environ.setdefault("RLX_CPU", "numpy")
    cache = tempfile.mkdtemp(prefix="rlx-test-cache-")
    os.environ["RLX_CACHE_DIR"] = cache
    config.add_cleanup(lambda: shutil.rmtree(cache, ignore_errors=True))
    config.pluginmanager.register(PassedBefore(config), "rlx-passed-before")
    config.pluginmanager.register(CpuForms(), "rlx-cpu-forms")
    config.pluginmanager.register(VulkanCount(_set("RLX_REQUIRE_VULKAN")), "rlx-vulkan-count")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes lives to the end of the run: the garbage collector would walk over it in vain. Later it
    looks less often than usual: a graph that is compiled makes thousands of objects which outlive its next look."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
        gc.enable()


def _combination(item: Any) -> dict[str, object]:
    """What a test's parameters are, by the names of those that are given together: the same object, the same value."""
    params = dict(item.callspec.params)
    found: dict[str, object] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found[str(mark.args[0])] = tuple(id(params.pop(name.strip())) for name in names)
    return found | {name: id(value) for name, value in params.items()}


def _leave_out_cuda(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where CuPy is not installed, tests that run on a CUDA device could only skip: thousands of messages."""
    if importlib.util.find_spec("cupy") is not None or any("::" in arg for arg in config.args):
        return

    def on_cuda(item: Any) -> bool:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        return item.get_closest_marker("cuda") is not None or any(
            params.get(name) in ("cuda", "cuda:0") for name in ("device", "session", "gpu")
        )

    out = [item for item in items if on_cuda(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        gone = set(out)
        items[:] = [item for item in items if item not in gone]


def _mark_what_is_left_out_on_vulkan(items: list[pytest.Item]) -> None:
    """Mark `full` all but a few of a test's combinations on Vulkan, where its mark `few_on_vulkan` says how many."""
    limited: dict[tuple[str, str], list[Any]] = {}
    for function in items:
        item: Any = function
        marked = any(mark.name == "few_on_vulkan" for mark in item.own_markers)
        if marked and _on_vulkan(item) and item.get_closest_marker("full") is None:
            limited.setdefault((item.parent.nodeid, item.originalname), []).append(item)
    for group in limited.values():
        most = group[0].get_closest_marker("few_on_vulkan").args[0]
        combinations = [_combination(item) for item in group]
        if any(len({one[name] for one in combinations}) > most for name in combinations[0]):
            kept = {i * len(group) // most for i in range(most)}
        else:
            kept = spread(combinations, most, most)
        for at, item in enumerate(group):
            if at not in kept:
                item.add_marker(pytest.mark.full)


def _on_vulkan(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return item.get_closest_marker("vulkan") is not None or (
        callspec is not None and _DEVICE_IN_ID.search(callspec.id) is not None
    )


def _mark_what_samples_leave_out(items: list[pytest.Item]) -> None:
    """Mark `full` what the mark `sample` of a test leaves out of its parameters' combinations, and `late` up to two
    thirds of what it takes, whose values occur in the rest too. The mark's keywords name values whose combinations all
    run: those of a device that few machines have, say."""
    sampled: dict[tuple[str, str], list[Any]] = {}
    for function in items:
        item: Any = function
        mark = next((mark for mark in item.own_markers if mark.name == "sample"), None)
        if mark is None or item.get_closest_marker("full") is not None:
            continue
        if not mark.kwargs.items() & item.callspec.params.items():
            sampled.setdefault((item.parent.nodeid, item.originalname), []).append(item)
    for group in sampled.values():
        least = group[0].get_closest_marker("sample").args[0]
        combinations = [_combination(item) for item in group]
        kept = spread(combinations, least)
        soon = spread([combinations[at] for at in sorted(kept)], len(kept) // 3)
        late = {at for i, at in enumerate(sorted(kept)) if i not in soon}
        for at, item in enumerate(group):
            if at not in kept:
                item.add_marker(pytest.mark.full)
            elif at in late:
                item.add_marker(pytest.mark.late)


def _leave_out_marked(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run leaves out tests marked `full` or `late`, unless it is a full run, or names the mark or a single test."""
    if full() or any("::" in arg for arg in config.args):
        return
    left_out = [mark for mark in ("full", "late") if mark not in config.option.markexpr]
    out = [item for item in items if any(item.get_closest_marker(mark) for mark in left_out)]
    if out:
        config.hook.pytest_deselected(items=out)
        gone = set(out)
        items[:] = [item for item in items if item not in gone]


def _mark_what_comes_late(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("late_on_vulkan") is not None and _on_vulkan(item):
            item.add_marker(pytest.mark.late)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each case parametrized over devices by the device that its id names. `-k` and `-m` select next, before
    pytest orders thousands of tests that will not run and Hypothesis reads the modules that they stand in."""
    _leave_out_cuda(config, items)
    _mark_what_is_left_out_on_vulkan(items)
    _mark_what_samples_leave_out(items)
    _mark_what_comes_late(items)
    _leave_out_marked(config, items)
    for item in items:
        if _on_vulkan(item):
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
