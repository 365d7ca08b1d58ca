"""Makes the pictures that the documents show: ``python -m tests.web.pictures``.

A shop lives for an hour, its jobs are enqueued, a worker runs some of them, and Chromium takes
pictures of the page and of ``taskq top``. It needs what the tests in a browser need.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from tests.processes.harness import Child
from tests.web.browser import CHROMIUM

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "pictures"
COLORS: Final = 256
SIZE: Final[Any] = {"width": 1_440, "height": 940}
TOP_COLUMNS: Final = 110


def save(name: str, png: bytes) -> None:
    FOLDER.mkdir(exist_ok=True)
    few = (
        Image.open(BytesIO(png))
        .convert("RGB")
        .quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.save(FOLDER / f"{name}.png", optimize=True)


def shown(text: str) -> str:
    console = Console(record=True, width=TOP_COLUMNS, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(Text.from_ansi(text))
    return console.export_html(inline_styles=True)


def main() -> None:
    with contextlib.ExitStack() as stack:
        # The name is in the pictures, so it is no real one.
        folder = Path(tempfile.gettempdir()) / "shop"
        folder.mkdir()
        stack.callback(shutil.rmtree, folder)
        shutil.copy(HERE / "shop.py", folder)
        data = folder / "data"
        os.environ["TASKQ_DATA_DIR"] = str(data)
        run: Callable[..., Any] = subprocess.run
        for words in (["shop.py", "past"], ["shop.py"]):
            run([sys.executable, *words], check=True, cwd=folder)
        command = (sys.executable, "-m", "taskq")
        with (
            Child(*command, "worker", "shop:app", "-c", 6, cwd=folder) as worker,
            Child(*command, "web", data, "--allow-actions") as web,
            sync_playwright() as playwright,
        ):
            worker.expect("  ready")
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)
            page.goto(web.line())
            page.wait_for_url("**/")
            page.wait_for_selector(r"text=/row \d+ of 600/", timeout=60_000)
            save("now", page.screenshot())
            page.emulate_media(color_scheme="dark")
            page.goto(f"{page.url}jobs?q=task:orders.import+state:dead")
            page.locator("tbody a").first.click()
            page.wait_for_selector("h1")
            save("job", page.screenshot())
            top = run(
                [*command, "top", data, "--once"], check=True, capture_output=True, text=True,
                env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(TOP_COLUMNS)},
            )  # fmt: skip
            terminal = browser.new_page(viewport={"width": 960, "height": 540})
            terminal.emulate_media(color_scheme="light")
            terminal.set_content(shown(top.stdout))
            save("top", terminal.locator("body").screenshot())
            browser.close()


if __name__ == "__main__":
    main()
