"""The README's pictures of the panel: `MAKE_PICTURES=1 pytest tests/browser/test_pictures.py` makes them anew."""

import dataclasses
import datetime as dt
import enum
import os
import struct
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from playwright.sync_api import Browser

from nbflow.values.schemas import describe
from tests.browser.bare import NOW, detail, group, head, mount, row, state, wait

IMAGES = Path(__file__).resolve().parents[2] / "notebooks" / "images"
SECOND = 1_000
WIDTH = 960

TRACEBACK = """Traceback (most recent call last):
  File "Cell [7]", line 12, in fetch
    response = client.get(url)
  File "/venv/lib/python3.13/site-packages/httpx/_client.py", line 1054, in get
    return self.request("GET", url)
TimeoutError: read timed out
"""


class Target(enum.Enum):
    STAGING = "staging"
    PRODUCTION = "production"


@dataclasses.dataclass
class Review:
    approved: bool
    reason: str
    sample_size: Annotated[int, msgspec.Meta(ge=1, le=5_000)] = 500
    target: Target = Target.STAGING
    not_before: dt.date | None = None


def running() -> tuple[dict, dict, int]:
    tries = [[NOW - start * SECOND, NOW - end * SECOND, "failed"] for start, end in ((60, 52), (42, 38), (18, 15))]
    counts = {"finished": 1_812, "running": 4, "retrying": 1, "failed": 2}
    rows = [
        row(
            0,
            "list shards",
            "finished",
            started=NOW - 724 * SECOND,
            ended=NOW - 722 * SECOND,
            note='{"shards":4102}',
            replayed=True,
        ),
        group(1, "embed", counts, rate=14.2, started=NOW - 700 * SECOND, total=4_102),
        row(2, "train", "running", started=NOW - 40 * SECOND, attempt=1, progress=[61, 100, "epoch 4"]),
        row(3, "fetch prices", "retrying", started=NOW - 60 * SECOND, attempt=3, limit=6, due=NOW + 17 * SECOND, tries=tries),
        row(4, "cool down", "sleeping", started=NOW - 30 * SECOND, due=NOW + 180 * SECOND),
        row(5, "load", "finished", started=NOW - 90 * SECOND, ended=NOW - 86 * SECOND, note="DataFrame 9,000×4", stale=True),
        row(
            6, "thumbnails", "failed", started=NOW - 12 * SECOND, ended=NOW - 10 * SECOND, attempt=6, note="OSError: disk full"
        ),
    ]
    counted = head(total=4_108, done=1_814, running=5, retrying=2, failed=3, replayed=1, started=NOW - 724 * SECOND, stale=1)
    error = {"type": "TimeoutError", "message": "read timed out", "traceback": TRACEBACK}
    attempts = [{"number": n + 1, "state": "failed", "started": NOW, "seconds": 2, "error": error} for n in range(3)]
    told = {
        "3": detail(
            rows[3],
            error=error,
            attempts=attempts,
            log={"total": 1, "items": [{"attempt": 1, "stream": "log", "at": NOW, "text": "x"}]},
        )
    }
    shown = state(rows, head=counted, workflow="EmbedCorpus", id="embed-7f3a", params='{"uri":"s3://docs/2026"}')
    return shown, told, 3


def asking() -> tuple[dict, dict, None]:
    rows = [
        row(0, "build", "finished", ended=NOW - 4_000, note='{"shards":4102,"vectors":1050112}'),
        row(1, "ask the editor", "waiting", due=NOW + 86_000 * SECOND),
    ]
    asked = wait(event="review", prompt="Release 4,102 shards?", schema=describe(Review, "schema"))
    counted = head(status="waiting", total=2, done=1, waiting=1)
    return state(rows, [asked], head=counted, workflow="Release", id="release-12"), {}, None


@pytest.mark.parametrize(("name", "made"), [("panel", running), ("approval", asking)])
def test_the_readmes_picture_is_there_small_and_shows_the_panel_as_it_is(chromium: Browser, name, made) -> None:
    page = chromium.new_page(viewport={"width": WIDTH, "height": 800}, device_scale_factor=1.5, reduced_motion="reduce")
    page.clock.install(time=NOW / 1_000 - 1)
    page.clock.pause_at(NOW / 1_000)
    shown, details, chosen = made()
    mount(page, shown, details=details)
    page.clock.run_for(200)
    if chosen is not None:
        page.locator(".nbf-rows .nbf-row").nth(chosen).click()
        page.clock.run_for(200)
    path = IMAGES / f"{name}.png"
    picture = page.locator(".nbflow").screenshot()
    page.close()
    if os.environ.get("MAKE_PICTURES"):
        IMAGES.mkdir(exist_ok=True)
        path.write_bytes(picture)
    kept = path.read_bytes()
    assert len(kept) < 150_000
    (width, height), (width_now, height_now) = (struct.unpack(">II", image[16:24]) for image in (kept, picture))
    # Fonts differ from machine to machine; a picture of another panel than today's has another shape.
    assert abs(width - width_now) <= 2
    assert abs(height - height_now) <= 60
