"""A headless Chromium, and what a test asks of a page in it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

PATIENCE = 15.0


def program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is missing; install it (Debian: the package {package})")
    return path


class Browser:
    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = program("chromium", "chromium")
        options.add_argument("--headless=new")
        options.add_argument("--disable-dev-shm-usage")
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium's own sandbox refuses root
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=program("chromedriver", "chromium-driver"))
        self.driver = webdriver.Chrome(options=options, service=service)

    def reset(self) -> None:
        """An empty page of the usual size in the light, and nothing said so far."""
        self.driver.get("about:blank")
        self.size(1280, 900)
        self.media()
        self.driver.get_log("browser")

    def size(self, width: int, height: int) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def media(self, **features: str) -> None:
        features = {"prefers-color-scheme": "light", **{name.replace("_", "-"): value for name, value in features.items()}}
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()])

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def open(self, url: str) -> Page:
        self.driver.get(url)
        return Page(self)

    def complaints(self) -> list[str]:
        """What went wrong in the page. That a server which is gone does not answer is no fault of the page."""
        severe = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in severe if "net::ERR_" not in message and "Failed to load resource" not in message]

    def quit(self) -> None:
        self.driver.quit()


class Page:
    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.driver = browser.driver

    def js(self, script: str, *arguments: Any) -> Any:
        """Asks from outside: what the page's own policy forbids it, a test may do."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def text(self, selector: str) -> str:
        return self.js("document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def shown(self, selector: str) -> bool:
        return bool(self.js("document.querySelector(arguments[0])?.checkVisibility() ?? false", selector))

    def until(self, what: str, condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
        deadline = time.monotonic() + patience
        while not (found := condition()):
            assert time.monotonic() < deadline, f"not in time: {what}; the page says:\n{self.text('body')}"
            time.sleep(0.02)
        return found

    def until_says(self, selector: str, words: str) -> None:
        self.until(f"`{words}` in {selector}", lambda: words in self.text(selector))

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def focus(self, selector: str) -> None:
        self.driver.execute_script("document.querySelector(arguments[0]).focus()", selector)

    def focused(self) -> str:
        return self.js("document.activeElement.id || document.activeElement.innerText")

    def point_at(self, selector: str, x: float, y: float) -> None:
        """Moves the mouse to so many pixels from the upper left corner of an element."""
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        box = element.size
        ActionChains(self.driver).move_to_element_with_offset(element, x - box["width"] / 2, y - box["height"] / 2).perform()

    def colors(self, selector: str) -> dict[str, int]:
        """How many pixels of a canvas have which colour, `#rrggbb`; what is transparent is not counted."""
        return self.js(
            """(() => {
                const canvas = document.querySelector(arguments[0]), found = {};
                const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                for (let i = 0; i < data.length; i += 4) {
                    if (data[i + 3] < 255) continue;
                    const hex = "#" + [0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, "0")).join("");
                    found[hex] = (found[hex] || 0) + 1;
                }
                return found;
            })()""",
            selector,
        )

    def variable(self, name: str) -> str:
        return self.js("getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()", f"--{name}")

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """The whole page, however long, or so much of it."""
        import base64

        height = height or self.js("document.documentElement.scrollHeight")
        width = self.js("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.browser.cdp("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
