"""Fixtures of the flows of the console."""

import json
import os

import chromium
import pytest
from steps import KEY, PORT, session, watched


@pytest.fixture(scope="session")
def browser():
    with chromium.launched(PORT, also=[int(port) for port in os.environ.get("CONSOLE_PROVIDER", "").split()]) as browser:
        yield browser


@pytest.fixture(scope="session")
def token():
    """A session of the operator, in the first team, or of the key."""
    admin = os.environ.get("CONSOLE_ADMIN")
    return session(**({"X-Admin-Token": admin} if admin else {"X-API-Key": KEY}))


@pytest.fixture
def new_context(browser):
    made = []

    def make(**options):
        context = browser.new_context(**options)
        made.append(context)
        return context

    yield make
    for context in made:
        context.close()


@pytest.fixture
def page(new_context, token):
    """A page that is logged in."""
    context = new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(f"sessionStorage.setItem('cay.session', {json.dumps(token)})")
    page = watched(context)
    yield page
    assert page.errors == []
