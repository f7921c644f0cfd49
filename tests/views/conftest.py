"""Debian's Chromium, one per file: two Playwrights in one process do not get on with each other, and while one is open
no other test of the process can run an event loop of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import PATIENCE


def chromium() -> str:
    """The browser; its absence is a failure, not a skip."""
    found = os.environ.get("TRAINVITALS_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "Chromium is needed: apt-get install chromium"
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        made = playwright.chromium.launch(executable_path=chromium(), args=flags, timeout=PATIENCE * 1000)
        yield made
        made.close()
