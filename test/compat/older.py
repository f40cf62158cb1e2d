"""A pytest plugin that runs the end-to-end tests with an SDK of another age.

A test that uses what the SDK of that age does not have is skipped, and the reason
says what is missing. The plugin notes which public methods of the
SDK each test calls, and writes the outcome of every test to CAY_COMPAT_OUT.
"""

import importlib.abc
import importlib.machinery
import inspect
import json
import os
import re
import sys
import types

import pytest

PACKAGES = ("e2b", "e2b_code_interpreter")


def lacks(name):
    return pytest.skip.Exception(f"the SDK has no {name}", allow_module_level=True)


class Missing(type):
    """The class of names that the SDK does not have yet."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise lacks(cls.__name__ + "." + name)

    def __call__(cls, *_, **__):
        raise lacks(cls.__name__)


def missing(name):
    if name.startswith("__"):
        raise AttributeError(name)
    base = Exception if name.endswith(("Exception", "Error")) else object
    return Missing(name, (base,), {})


class LaterModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that the SDK does not have yet; all their names are missing."""

    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module):
        module.__getattr__ = missing


def of_the_sdk(module):
    return module.partition(".")[0] in PACKAGES


class Recorder:
    def __init__(self):
        self.called = set()
        self.methods = set()

    def watch(self, cls):
        label = cls.__name__.removeprefix("Async")
        if cls.__module__.startswith("e2b_code_interpreter"):
            label = "code interpreter " + label
        for name, raw in list(vars(cls).items()):
            if name.startswith("_") or isinstance(raw, property) or not callable(getattr(cls, name, None)) or inspect.isclass(raw):
                continue
            self.methods.add(f"{label}.{name}")
            setattr(cls, name, Noted(self, f"{label}.{name}", raw))


class Noted:
    """A method whose calls are noted. It binds as the method does."""

    def __init__(self, recorder, label, raw):
        self.recorder, self.label, self.raw = recorder, label, raw
        self.__doc__, self.__wrapped__ = raw.__doc__, getattr(raw, "__wrapped__", raw)

    def __get__(self, instance, owner=None):
        bound = self.raw.__get__(instance, owner)
        recorder, label = self.recorder, self.label

        def call(*args, **kw):
            recorder.called.add(label)
            return bound(*args, **kw)

        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__signature__"):
            if hasattr(bound, name):
                setattr(call, name, getattr(bound, name))
        call.__wrapped__ = bound
        return call


def public_classes():
    """Classes of the SDKs with methods that people call."""
    inner = re.compile(r"\.(api|envd|exceptions|retry|_|connection_config|generated)")
    for module in [m for name, m in list(sys.modules.items()) if of_the_sdk(name) and not inner.search(name + ".")]:
        for name, cls in list(vars(module).items()):
            if (inspect.isclass(cls) and cls.__module__ == module.__name__ and not name.startswith("_")
                    and not issubclass(cls, (BaseException, dict, tuple)) and "TypedDict" not in str(type(cls))):
                yield cls


sys.meta_path.append(LaterModules())
import e2b  # noqa: E402
import e2b_code_interpreter  # noqa: E402

recorder = Recorder()
WATCHED = re.compile(r"Sandbox$|^(Async)?(Commands|Filesystem|Pty|Git|CommandHandle|WatchHandle|Template|TemplateBase|Secret|Volume|E2B)$"
                     r"|TemplateBuilder$|TemplateFinal$|Paginator$")
for each in {c for c in public_classes() if WATCHED.search(c.__name__)}:
    recorder.watch(each)
for package in (e2b, e2b_code_interpreter):
    if "__getattr__" not in vars(package):
        package.__getattr__ = missing
for cls in (e2b.Sandbox, e2b_code_interpreter.Sandbox):
    if not hasattr(cls, "create"):  # before 2.0 the constructor makes a sandbox
        cls.create = classmethod(lambda cls, *args, **kw: cls(*args, **kw))


def not_there_yet(error, path):
    """The part that the SDK lacks, by an error; None for other errors."""
    if isinstance(error, TypeError) and (found := re.search(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'", str(error))):
        return f"{found[1].removeprefix('Noted.')} takes no {found[2]}"
    obj = getattr(error, "obj", None)
    if isinstance(error, AttributeError) and obj is not None:
        owner = obj if inspect.isclass(obj) or isinstance(obj, types.ModuleType) else type(obj)
        if of_the_sdk(getattr(owner, "__module__", None) or getattr(owner, "__name__", "")) or isinstance(owner, types.ModuleType):
            return f"the SDK has no {getattr(owner, '__name__', owner)}.{error.name}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    recorder.called.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and call.excinfo is not None and (reason := not_there_yet(call.excinfo.value, item.path)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, reason)
    report.called = sorted(recorder.called)
    report.methods = sorted(recorder.methods)
    return report


outcomes = {}
known_methods = set()


def pytest_runtest_logreport(report):
    known_methods.update(report.methods)
    one = outcomes.setdefault(report.nodeid, {"outcome": "passed", "reason": "", "called": []})
    one["called"] = report.called
    if report.outcome == "skipped" and one["outcome"] == "passed":
        one.update(outcome="skipped", reason=str(report.longrepr[2]).removeprefix("Skipped: "))
    if report.outcome == "failed":
        lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")] or [str(report.longrepr)[-300:]]
        one.update(outcome="failed", reason=lines[0].removeprefix("E").strip()[:300])


def pytest_collectreport(report):
    if report.outcome == "passed":
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)[-300:]
    outcomes[report.nodeid] = {"outcome": report.outcome, "reason": reason.removeprefix("Skipped: "), "called": []}


def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput") or "CAY_COMPAT_OUT" not in os.environ:
        return
    with open(os.environ["CAY_COMPAT_OUT"], "w") as f:
        json.dump({"methods": sorted(known_methods), "tests": outcomes}, f, indent=1)
