"""Notes which public methods of the SDK's classes the tests have called.

The last test of a file names the methods that no test called, so that a method which a
newer SDK brings does not stay untested.
"""

import functools
import inspect

called = set()


def public(cls):
    """The names of a class's public methods."""
    return {name for name, member in inspect.getmembers(cls) if not name.startswith("_") and callable(member)}


def watch(*classes):
    """Has every call of a public method of these classes noted."""
    for cls in classes:
        for name in public(cls):
            setattr(cls, name, noted(cls, name, getattr(cls, name)))


def noted(cls, name, method):
    @functools.wraps(method)
    def call(*args, **kw):
        called.add((cls, name))
        return method(*args, **kw)

    return call


def uncalled(*classes):
    """The methods of these classes that no test called."""
    return sorted(f"{cls.__module__}.{cls.__name__}.{name}"
                  for cls in classes for name in public(cls) if (cls, name) not in called)
