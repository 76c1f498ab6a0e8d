"""A page with everything in it, and a Chromium to look at it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from everything import make_report
from selenium import webdriver


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report: training and operators, parity with a recipe out of bounds, what failed and why."""
    folder = tmp_path_factory.mktemp("report") / "h200"
    make_report(folder)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # it has none for root
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome, page: str) -> Iterator[webdriver.Chrome]:
    """Chromium with the page just opened, and nothing told to it before."""
    for log in ("performance", "browser"):
        chromium.get_log(log)
    chromium.get(page)
    yield chromium
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
