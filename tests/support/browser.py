"""A real browser without a screen, for tests of pages: what its console says, and what a page asks the network for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def browser(profile: Path, *, width: int = 1000, height: int = 900) -> Iterator[Chrome]:
    """Debian's Chromium, with everything that it logs."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield chrome
    finally:
        chrome.quit()


def requested(chrome: Chrome) -> set[str]:
    """The addresses that the page has asked for since the last call, its own among them."""
    events = (json.loads(line["message"])["message"] for line in chrome.get_log("performance"))
    return {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
