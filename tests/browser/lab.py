"""A real JupyterLab and a real Chromium, and a notebook in them as a person would use it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import BrowserContext, Locator, Page, expect

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("NBFLOW_TEST_CHROMIUM", "/usr/bin/chromium")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
TOKEN = "nbflow-tests"
PATIENCE = 20_000


@dataclass(frozen=True)
class Lab:
    """A running server and the folder it serves."""

    url: str
    root: Path
    pid: int

    def notebook(self, folder: str, cells: list[str]) -> str:
        """Write a notebook into a folder of its own, which makes its history its own too; give its path."""
        path = self.root / folder / "notebook.ipynb"
        path.parent.mkdir(exist_ok=True)
        written = new_notebook(cells=[new_code_cell(cell) for cell in cells])
        written.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(written, path)
        return f"{folder}/notebook.ipynb"


@contextmanager
def serve(root: Path, home: Path) -> Iterator[Lab]:
    """Run JupyterLab on a free port with settings of its own; end only what was started here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {name: str(home / name.lower()) for name in ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")}
    settings = home / "jupyterlab_settings_dir" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"),
        *("--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}"),
        *("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
        "--LabApp.extension_manager=readonly",
    ]
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **own, "PYTHONPATH": path}, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_server(f"{url}/api?token={TOKEN}", server, home / "lab.log")
        yield Lab(url, root, server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(5)


def _await_server(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(300):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=2).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


class Notebook:
    """One notebook in one tab."""

    def __init__(self, context: BrowserContext, lab: Lab, path: str, *, live: bool = True) -> None:
        self.page: Page = context.new_page()
        self.path, self.live = path, live
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.address = f"{lab.url}/doc/tree/{path}?token={TOKEN}"
        self.open(reset=True)

    def open(self, *, reset: bool = False) -> None:
        """Load the page; *reset* forgets the layout of earlier ones."""
        self.page.goto(self.address + ("&reset" if reset else ""))
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        if self.live:
            self.await_idle()

    def await_idle(self) -> None:
        """Wait for a connected, idle kernel. The toolbar's sign says idle before there is one; the status bar is right."""
        self.page.wait_for_selector('#jp-main-statusbar :text("| Idle")', timeout=60_000)
        self.page.wait_for_timeout(300)

    def cell(self, place: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(place)

    def run(self, place: int) -> None:
        """Run a cell; do not wait for it."""
        self.cell(place).locator(".jp-InputArea-editor").click()
        self.page.keyboard.press("Control+Enter")

    def await_prompt(self, place: int, pattern: str = r"\[\d+\]:") -> None:
        """Wait until the cell's prompt shows a number: it has ended."""
        import re

        expect(self.cell(place).locator(".jp-InputArea-prompt")).to_have_text(re.compile(pattern), timeout=PATIENCE)

    def run_to_end(self, place: int) -> str:
        self.run(place)
        self.await_prompt(place)
        return self.output(place)

    def output(self, place: int) -> str:
        self.page.wait_for_timeout(150)
        return "\n".join(self.cell(place).locator(".jp-OutputArea-output").all_inner_texts())

    def is_busy(self, place: int) -> bool:
        return "*" in self.cell(place).locator(".jp-InputArea-prompt").inner_text()

    def menu(self, *items: str) -> None:
        self.page.click(f'.lm-MenuBar-itemLabel:text-is("{items[0]}")')
        for item in items[1:]:
            self.page.click(f'.lm-Menu-itemLabel:text-is("{item}")')

    def restart_kernel(self) -> None:
        self.menu("Kernel", "Restart Kernel…")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.await_idle()

    def save(self) -> None:
        self.page.keyboard.press("Control+s")
        self.page.wait_for_timeout(800)

    def panel(self, place: int) -> "PanelPage":
        return PanelPage(self.cell(place).locator(".nbflow"))


class PanelPage:
    """A panel as a person sees it."""

    def __init__(self, root: Locator) -> None:
        self.root = root
        self.word = root.locator(".nbf-header .nbf-word")
        self.rows = root.locator(".nbf-rows .nbf-row")
        self.grid = root.locator(".nbf-grid")
        self.banner = root.locator(".nbf-banner")
        self.notice = root.locator(".nbf-notice")
        self.stale = root.locator(".nbf-stale")
        self.count = root.locator(".nbf-steps-bar .nbf-shown")
        self.detail = root.locator(".nbf-detail")

    def button(self, name: str, *, exact: bool = False) -> Locator:
        return self.root.get_by_role("button", name=name, exact=exact)

    def tab(self, name: str) -> Locator:
        return self.detail.get_by_role("tab", name=name, exact=True)

    def view(self, name: str) -> Locator:
        return self.root.get_by_role("tablist", name="Views").get_by_role("tab", name=name)

    def row(self, name: str) -> Locator:
        return self.rows.filter(has=self.root.page.locator(".nbf-name", has_text=name)).first

    def await_live(self) -> None:
        expect(self.root).to_have_attribute("data-live", "true", timeout=PATIENCE)

    def await_armed(self, name: str) -> Locator:
        """Wait until that button does what it says; for what presses it without looking."""
        button = self.button(name)
        expect(button).not_to_have_attribute("aria-disabled", "true", timeout=PATIENCE)
        return button

    def await_settled(self) -> None:
        """Wait until what has appeared where the pointer is takes clicks."""
        expect(self.root).not_to_have_attribute("data-settling", "", timeout=PATIENCE)

    def await_word(self, word: str) -> None:
        expect(self.word).to_have_text(word, timeout=PATIENCE)


def executes(page: Page) -> Any:
    """Whether any of the hostile texts of these tests has run as code."""
    return page.evaluate("window.nbflowHit === undefined ? null : window.nbflowHit")
