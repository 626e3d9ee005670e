"""One JupyterLab and one Chromium for all browser tests; a tab and a folder for each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")
pytest.importorskip("jupyterlab")

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.bare import NOW
from tests.browser.lab import CHROMIUM, QUIET, Lab, Notebook, serve

if not Path(CHROMIUM).exists():
    pytest.skip(f"no Chromium at {CHROMIUM} (set NBFLOW_TEST_CHROMIUM)", allow_module_level=True)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with serve(tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    opened = chromium.new_context(viewport={"width": 1300, "height": 1000})
    yield opened
    opened.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A page of its own whose clock stands still until a test moves it."""
    opened = context.new_page()
    opened.clock.install(time=NOW / 1000 - 1)
    opened.clock.pause_at(NOW / 1000)
    return opened


@pytest.fixture
def open_notebook(lab: Lab, context: BrowserContext, request: pytest.FixtureRequest) -> Iterator[Callable[..., Notebook]]:
    """Open a notebook with these cells; `import nbflow` is loaded by its first."""
    opened: list[Notebook] = []
    folder = request.node.name.replace("[", "-").replace("]", "")[:80]

    def open_(*cells: str) -> Notebook:
        path = lab.notebook(folder, list(cells))
        opened.append(Notebook(context, lab, path))
        return opened[-1]

    yield open_
    for notebook in opened:
        # The kernel must not outlive its test: hundreds of them would not fit.
        notebook.page.evaluate(
            """async (token) => {
                const all = await (await fetch('/api/sessions?token=' + token)).json();
                await Promise.all(all.map((one) => fetch(`/api/sessions/${one.id}?token=${token}`, {
                    method: 'DELETE', headers: {Authorization: 'token ' + token}})));
            }""",
            "nbflow-tests",
        )
        notebook.page.close()
