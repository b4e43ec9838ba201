"""The page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from graphcache.process.chrome_trace import Span, trace_json
from tests.support.browser import browser, requested
from tests.trainer.report.conftest import MakeRun
from trainer.report.page import page
from trainer.report.report import make_report


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser(tmp_path_factory.mktemp("profile")) as chrome:
        yield chrome


@pytest.fixture
def written(make_run: MakeRun, tmp_path: Path) -> Path:
    spans = [
        Span(group, f"{lane} {number}", f"{what} <i>", i / 50, 1 / 60)
        for group in ("measured, step 2", f"predicted: {'a long basis & more of it ' * 4}")
        for lane, what in (("device", "forward"), ("link", "upload"), ("worker", "update"))
        for number in range(4)
        for i in range(100)
    ]
    secs = [2.0 + i % 3 for i in range(40)]
    folders = [
        make_run("<b>offload & 'x'", secs, trace=trace_json(spans)),
        make_run("resident", [1.5] * 40, seq=64),
    ]
    path = tmp_path / "page.html"
    path.write_text(page(make_report(folders)))
    return path


def test_the_page_asks_the_network_for_nothing_and_has_no_script_errors(written: Path, chrome: Chrome) -> None:
    chrome.get(written.as_uri())
    # The browser's own first tab is a page of chrome:// addresses.
    assert {url for url in requested(chrome) if not url.startswith(("data:", "chrome:"))} == {written.as_uri()}
    assert chrome.get_log("browser") == []
    shown = chrome.find_element("tag name", "body").text
    assert "<b>offload & 'x'" in shown  # a name is text, never markup
    assert chrome.execute_script("return document.querySelectorAll('svg').length") == 5
    assert "A step of <b>offload & 'x'" in shown
    assert "worker 3" in shown
    assert "predicted: a long basis & more of it" in shown


def test_a_phone_scrolls_tables_and_not_the_page(written: Path, chrome: Chrome) -> None:
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    chrome.get(written.as_uri())
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 360
    # Legible: no text of a figure is smaller than 6 CSS pixels, a printed footnote's size.
    smallest = (
        "return Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert chrome.execute_script(smallest) >= 6


def test_on_paper_nothing_is_cut_off(written: Path, chrome: Chrome) -> None:
    sheet = {"width": 718, "height": 1046, "deviceScaleFactor": 1, "mobile": False}  # A4 within Chromium's margins
    chrome.get(written.as_uri())
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sheet)
    right = "return [...document.querySelectorAll('table, svg')].map(each => each.getBoundingClientRect().right)"
    assert max(chrome.execute_script(right)) <= sheet["width"]
