"""The panel: one widget per instance in this process, told what is new by one thread of its own.

Data goes one way: feed → `turn` → one trait. A click is a message, parsed strictly, acted on in another thread, answered
by its id. Nothing here may hurt a step: whatever fails while telling the page is dropped and told again at the next turn.
"""

import functools
import pathlib
import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from nbflow.clock import Clock, SystemClock
from nbflow.core.asking import AnsweredError
from nbflow.core.model import Owner
from nbflow.engine import reading
from nbflow.errors import NbflowError
from nbflow.jupyter import answers, snapshot
from nbflow.jupyter.display import Display
from nbflow.jupyter.lane import Lane
from nbflow.jupyter.messages import (
    CloseOutput,
    Command,
    Decide,
    Heard,
    Hello,
    Message,
    Restart,
    Retry,
    parse,
    reply_id,
)
from nbflow.jupyter.pace import Pace, Send
from nbflow.store.views import InstanceView
from nbflow.values.schemas import UnfitPayloadError

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance

__all__ = ["Display", "Panel", "close_all", "panel_for"]

_STATIC = pathlib.Path(__file__).parent / "static"
_NAMESPACE = uuid.UUID("0f3e7a52-7d0b-5c3e-9a54-6e62666c6f77")
_DISPLAYS = 20
_FAREWELL = 1.0
_CLICKS = 1_000

# By model id. Two widgets with one model id silently kill the first one's views, so there is never a second.
_panels: dict[str, "Panel"] = {}
_panels_lock = threading.RLock()


def model_id_for(inst: "WorkflowInstance") -> str:
    """The widget's id: the same in every kernel, so that a page finds its panel again after a restart and a reload."""
    created = inst.created_at.isoformat()
    return uuid.uuid5(_NAMESPACE, f"{inst.engine.uid}/{inst.workflow_name}/{inst.id}/{created}").hex


def panel_for(inst: "WorkflowInstance") -> "Panel":
    """Give the one panel of this instance in this process, made at the first call."""
    model_id = model_id_for(inst)
    with _panels_lock:
        panel = _panels.get(model_id)
        if panel is None:
            panel = _panels[model_id] = Panel(inst, model_id=model_id)
            panel.start()
        else:
            panel.follow(inst)
        return panel


def close_all() -> None:
    """Take every panel out of its notebook; the lines above them stay."""
    with _panels_lock:
        panels = list(_panels.values())
        _panels.clear()
    for panel in panels:
        panel.stop()
    clock = SystemClock()
    end = clock.monotonic() + _FAREWELL
    for panel in panels:
        panel.retire(max(0.0, end - clock.monotonic()))


class Panel(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget of one instance.

    Attributes:
        state: all that is pushed to the page (`snapshot.state_json`), with a rising `seq`.
        hello_seen: set when a page has drawn the panel since it was last displayed.
    """

    _esm = _STATIC / "panel.js"
    _css = _STATIC / "panel.css"
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, inst: "WorkflowInstance", *, model_id: str, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._inst = inst
        self._seq = 1
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._retired = False
        self._thread: threading.Thread | None = None
        self._forced = False
        self._told: dict[str, Any] = {}
        self._at_work = self._here = False
        self._neighbours: tuple[Owner, ...] = ()  # whose life this panel shows
        self._version = 0
        self._trouble = ""
        self._displays: deque[Display] = deque(maxlen=_DISPLAYS)
        self._commands, self._questions = Lane("nbflow-panel-commands"), Lane("nbflow-panel-questions")
        self._clicks: dict[str, None] = {}  # ids of the last ones, the oldest first
        self._pace = Pace(sent_any=self._clock.monotonic())
        self.hello_seen = threading.Event()
        self._unsubscribe = inst.engine.feed.subscribe(self._changed)
        super().__init__(model_id=model_id, state=self._read(inst.view()))
        _route_clicks(self.comm)
        self._pace.sent(self._clock.monotonic())
        self.on_msg(self._on_message)

    def start(self) -> None:
        """Start the thread that tells the page what is new."""
        self._thread = threading.Thread(target=self._run, name="nbflow-panel", daemon=True)
        self._thread.start()

    def follow(self, inst: "WorkflowInstance") -> None:
        """Show the same instance as another engine of this process has it, if it is another."""
        if inst.engine is self._inst.engine:
            return
        with self._lock:
            self._unsubscribe()
            self._inst.engine.watch.show(self, ())
            self._inst, self._unsubscribe = inst, inst.engine.feed.subscribe(self._changed)
            self._forced = True
        self._changed(0)

    def attach(self, display: Display) -> None:
        """Keep *display*'s twin true from now on."""
        self.hello_seen.clear()
        self._displays.append(display)

    def stop(self) -> None:
        """Tell the thread to end."""
        if self._retired:
            return
        self._retired = True
        self._unsubscribe()
        self._inst.engine.watch.show(self, ())
        self._wake.set()

    def retire(self, timeout: float = 1.0) -> None:
        """Wait for the thread, at most *timeout* seconds; empty the outputs, close the widget."""
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        self._empty_outputs()
        _silently(self.close)

    def turn(self) -> float | None:
        """Send what is due now; give the seconds until the next turn, None where nothing is due before something happens."""
        with self._lock:
            now = self._clock.monotonic()
            match self._pace.due(now, at_work=self._at_work):
                case Send.STATE:
                    self._send_state(now)
                case Send.ALIVE:
                    self._send_alive(now)
                case Send.HEAD:
                    self._send_alive(now, head=True)
                case Send.NOTHING:
                    pass
            waits = [self._pace.wait(now, at_work=self._at_work)]
            away = self._pace.away(now)
            self._inst.engine.watch.show(self, () if away or self._retired else self._neighbours)
            if not away:
                waits += [display.due_in(now) for display in self._displays]
            return min((wait for wait in waits if wait is not None), default=None)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take no trait from a page: pages speak in messages."""

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        from nbflow.jupyter import fallback

        self.hello_seen.clear()
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/plain": fallback.text(self._inst.view())}, metadata

    # -- telling

    def _run(self) -> None:
        while not self._retired:
            try:
                timeout = self.turn()
            except Exception:  # noqa: BLE001 - whatever breaks here must not end the panel, let alone a step
                timeout = 1.0
            self._wake.wait(timeout)
            self._wake.clear()

    def _changed(self, created_seq: int) -> None:
        if created_seq in (0, self._inst.created_seq):
            self._pace.changed()
            self._wake.set()

    def _read(self, view: InstanceView) -> dict[str, Any]:
        self._at_work, self._here, self._version = snapshot.at_work(view), view.here, view.version
        self._neighbours = view.neighbours
        page = reading.lines(self._inst, snapshot.last_lines)
        engine = self._inst.engine.engine_id
        return snapshot.state_json(view, page, engine=engine, seq=self._seq, now=self._clock.now())

    def _send_state(self, now: float) -> None:
        self._pace.looked_at(now)
        try:
            view = self._inst.view()
            state = self._read(view)
            self._pace.took(self._clock.monotonic() - now)
        except NbflowError as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                self._send_alive(now)
            return
        cleared, self._trouble = self._trouble, ""
        news = {name: value for name, value in state.items() if name not in ("seq", "now")}
        if news != self._told or self._forced:
            self._seq += 1
            state["seq"] = self._seq
            try:
                self.state = state
            except Exception:  # noqa: BLE001 - a closed socket; the next turn tries again
                self._pace.changed()
            else:
                self._told, self._forced = news, False
                self._pace.sent(now)
        elif cleared:
            self._send_alive(now)
        self._refresh_displays(view, now)

    def _send_alive(self, now: float, *, head: bool = False) -> None:
        engine = self._inst.engine
        trouble = (self._trouble or engine.trouble)[:300]
        message = {"type": "alive", "engine": engine.engine_id, "seq": self._seq, "trouble": trouble}
        if head:
            view = _silently(self._inst.view)
            if view is not None:
                self._at_work = snapshot.at_work(view)
                message["head"] = snapshot.head_json(view)
                if view.settled:
                    self._refresh_displays(view, now)
        self._say({**message, "now": snapshot.millis(self._clock.now())})
        self._pace.sent(now)
        if not head:
            self._refresh_displays(None, now)

    def _refresh_displays(self, view: InstanceView | None, now: float) -> None:
        for display in list(self._displays):
            display.refresh(view, now)

    def _say(self, content: dict[str, Any]) -> None:
        _silently(functools.partial(self.send, content))

    # -- listening; on whatever thread the kernel delivers, so only notes and hands over

    def _on_message(self, _widget: object, content: object, _buffers: object) -> None:
        try:
            message = parse(content)
        except NbflowError as error:
            self._refuse(reply_id(content), error)
            return
        self._hear()
        match message:
            case Hello():
                self.hello_seen.set()
                with self._lock:
                    self._forced = True
                self._pace.changed()
                engine, now = self._inst.engine.engine_id, snapshot.millis(self._clock.now())
                self._answer(message.id, engine=engine, now=now, seq=self._seq)
                self._wake.set()
            case Heard():
                pass
            case Command() | Decide() | Restart() | Retry() if message.id in self._clicks:
                self._answer(message.id, error="this click came already; it was not done a second time")
            case Command() | Decide() | Restart() | Retry():
                self._clicks[message.id] = None
                if len(self._clicks) > _CLICKS:
                    self._clicks.pop(next(iter(self._clicks)))
                self._hand_over(self._commands, message)
            case _:
                self._hand_over(self._questions, message)

    def _hear(self) -> None:
        was_dirty = self._pace.dirty
        self._pace.heard(self._clock.monotonic())
        if self._pace.dirty and not was_dirty:
            self._wake.set()

    def _hand_over(self, lane: Lane, message: Message) -> None:
        if not lane.put(functools.partial(self._act, message)):
            self._answer(message.id, error="too many requests are waiting; try again")  # type: ignore[union-attr]

    def _act(self, message: Message) -> None:
        message_id: str = message.id  # type: ignore[union-attr]
        try:
            match message:
                case Command() | Decide() | Restart() | Retry() | CloseOutput() if (
                    message.engine != self._inst.engine.engine_id
                ):
                    text = "this panel was drawn by a kernel that is gone; nothing was done; run the cell again"
                    self._answer(message_id, error=text)
                case Command() | Decide() | Restart() | Retry():
                    note = answers.act(self._inst, message)
                    self._answer(message_id, **({"note": note} if note else {}))
                case CloseOutput():
                    self._answer(message_id)
                    self._close_output(message.display)
                case Hello() | Heard():
                    pass
                case _:
                    self._answer(message_id, **answers.answer(self._inst, message, self._version))
        except NbflowError as error:
            self._refuse(message_id, error)
        except Exception as error:  # noqa: BLE001 - the page is told, whatever it was
            self._answer(message_id, error=f"{type(error).__name__}: {error}")

    def _close_output(self, display_id: str) -> None:
        view = _silently(self._inst.view)
        for display in list(self._displays):
            if display.id == display_id:
                display.empty(view)
        # Of a page that was loaded again, or another tab, the front end does not know that the output is updated.
        self._say({"type": "closed", "display": display_id})

    def _refuse(self, message_id: str | None, error: NbflowError) -> None:
        """Say why nothing was done: of a payload also where it does not fit, of a wait also who was first."""
        more: dict[str, Any] = {}
        if isinstance(error, UnfitPayloadError):
            more = {"fields": snapshot.plain(error.problems, 500)}
        elif isinstance(error, AnsweredError):
            more = {"answered": {"by": snapshot.plain(error.by, 200), "at": snapshot.millis(error.at)}}
        self._answer(message_id, error=str(error), **more)

    def _answer(self, message_id: str | None, *, error: str | None = None, **more: Any) -> None:
        content: dict[str, Any] = {"type": "answer", "id": message_id, "ok": error is None, **more}
        if error is not None:
            content["error"] = snapshot.plain(error, 2_000)
        self._say(content)

    def _empty_outputs(self) -> None:
        # At the end of a kernel nobody may wait for the DuckDB file: only what is in memory is read again.
        view = _silently(self._inst.view) if self._here else None
        for display in list(self._displays):
            display.close(view)
        self._displays.clear()


def _route_clicks(comm: object) -> None:
    """Let clicks in while a cell is busy.

    ipykernel 7.4 sends what a page says on a comm to the subshell that last published on it, which for a widget made in a
    cell is the main shell, busy with that cell. Told to keep the subshell that the page asked for, it delivers at once.
    This is private there; where it is absent or has changed, clicks arrive when the cell has ended.
    """
    try:
        if hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda _content, asked: asked  # noqa: SLF001
    except Exception:  # noqa: BLE001
        pass


def _silently(act: Callable[[], Any]) -> Any:
    """Do *act*; None where it fails: telling the page must never hurt a step."""
    try:
        return act()
    except Exception:  # noqa: BLE001
        return None
