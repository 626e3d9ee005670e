"""The panel alone in an empty page, with a kernel made of a few lines: quick, and any state can be shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

STATIC = Path(__file__).resolve().parents[2] / "nbflow" / "jupyter" / "static"
NOW = 1_890_000_000_000  # what the page's clock says where a test installs one
SETTLED = 700  # milliseconds after which what has appeared takes clicks

# Answers as panel.py does. `silent` keeps answers back; `rowOf` makes row n of a large instance.
KERNEL = """
window.mount = async ({js, css, state, details, silent, theme, answers, views}) => {
  document.body.dataset.jpThemeLight = String(theme === 'light');
  document.body.style.background = theme === 'light' ? '#fff' : '#111';
  const style = document.createElement('style');
  style.textContent = css + (theme === 'light' ? '' :
    ':root{--jp-layout-color0:#111;--jp-content-font-color1:#fff}');
  document.head.append(style);
  const handlers = {};
  const fire = (name, message) => (handlers[name] ?? []).forEach((handler) => handler(message));
  const rowOf = (i) => ({i, key: ['do', 'embed', i + 1, null], state: 'finished', started: 1000, ended: 2000, note: 'row ' + i});
  const kernel = window.kernel = {
    state, silent, answers: answers ?? {}, sent: [],
    push: (next) => { kernel.state = next; fire('change:state'); },
    say: (message) => fire('msg:custom', message),
    answer: (m) => {
      const base = {type: 'answer', id: m.id, ok: true};
      if (m.type === 'hello') return {...base, engine: kernel.state.engine, now: Date.now(), seq: kernel.state.seq};
      if (m.type === 'step') return {...base, step: details[m.index] ?? null};
      if (kernel.answers[m.type]) return {...base, ...kernel.answers[m.type]};
      if (m.type === 'rows') {
        const stop = Math.min(m.stop, kernel.state.head.total);
        const items = Array.from({length: Math.max(0, stop - m.start)}, (_, n) => rowOf(m.start + n));
        return {...base, rows: {total: kernel.state.head.total, start: m.start, version: kernel.state.head.version, items}};
      }
      if (m.type === 'plan') return {...base, plan: {words: '1 step kept, 2 steps run again (a, b).', since: null}};
      return base;
    },
  };
  const model = window.model = {
    get: () => kernel.state,
    on: (name, handler) => (handlers[name] ??= []).push(handler),
    off: (name, handler) => { handlers[name] = (handlers[name] ?? []).filter((one) => one !== handler); },
    send: (message) => {
      kernel.sent.push(message);
      if (message.id && !kernel.silent) setTimeout(() => kernel.say(kernel.answer(message)), 1);
    },
  };
  setInterval(() => {
    if (!kernel.silent) kernel.say({type: 'alive', engine: kernel.state.engine, seq: kernel.state.seq, now: Date.now(), trouble: ''});
  }, 5000);
  const module = await import(URL.createObjectURL(new Blob([js], {type: 'text/javascript'})));
  const begin = performance.now();
  for (let view = 0; view < views; view++) {
    const host = document.createElement('div');
    document.body.append(host);
    window.cleanup = module.default.render({model, el: host});
  }
  window.handlers = handlers;
  window.opened = performance.now() - begin;
};
0
"""


def head(**more: Any) -> dict[str, Any]:
    told = dict.fromkeys(("done", "total", "running", "retrying", "failed", "waiting", "replayed", "unreached"), 0)
    told |= dict.fromkeys(("ended", "sleeping", "interrupted", "error"))
    told |= {"status": "running", "settled": False, "here": True, "owner": "", "alive": True, "version": 1}
    return {**told, "started": NOW - 60_000, "changed": NOW, **more}


def row(index: int, name: str, state: str, **more: Any) -> dict[str, Any]:
    return {"i": index, "key": ["do", name, 1, None], "state": state, "started": NOW - 5_000, **more}


def detail(shown: dict[str, Any], **more: Any) -> dict[str, Any]:
    told = {"preview": None, "error": None, "attempts": [], "log": {"total": 0, "items": []}, "code": "", "diff": "", "why": []}
    return {"row": shown, **told, **more}


def group(index: int, name: str, counts: dict[str, int], **more: Any) -> dict[str, Any]:
    shown = row(index, name, "running" if counts.get("running") else "finished")
    return {**shown, "key": ["do", name, 0, None], "counts": counts, "total": sum(counts.values()), "open": False, **more}


def wait(**more: Any) -> dict[str, Any]:
    asked = {"name": "ask the editor", "count": 1, "event": "approval", "prompt": "Publish?", "due": NOW + 86_400_000}
    schema = more.pop("schema", None)
    return {**asked, "since": NOW, "schema": None if schema is None else json.dumps(schema), **more}


def state(rows: list[dict], waits: list[dict] | None = None, **more: Any) -> dict[str, Any]:
    told = {
        "workflow": "Ingest",
        "id": "ingest-1",
        "created": NOW,
        "params": "{}",
        "output": "",
        "code": "",
        "traceback": False,
    }
    counted = more.pop("head", None) or head(total=len(rows), waiting=len(waits or []))
    page = {"start": 0, "total": len(rows) or counted["total"], "items": rows}
    return {"seq": 2, "engine": "e1", "now": NOW, **told, "head": counted, "waits": waits or [], "rows": page, **more}


def mount(
    page: Page,
    shown: dict[str, Any],
    *,
    details: dict | None = None,
    silent: bool = False,
    theme: str = "light",
    answers: dict | None = None,
    views: int = 1,
    beside: bool = False,
) -> None:
    """Draw the panel; *answers* are what the kernel says to questions, by their type; *beside* what is drawn already."""
    if not beside:
        page.set_content("<title>panel</title>")
        page.evaluate(KERNEL)
    sources = {"js": (STATIC / "panel.js").read_text(), "css": (STATIC / "panel.css").read_text()}
    page.evaluate(
        "(given) => window.mount(given)",
        {
            **sources,
            "state": shown,
            "details": details or {},
            "silent": silent,
            "theme": theme,
            "answers": answers,
            "views": views,
        },
    )


def push(page: Page, shown: dict[str, Any]) -> None:
    page.evaluate("(next) => window.kernel.push(next)", shown)


Mount = Callable[..., None]
