"""An instance in a notebook: two outputs, first the twin that any reader can show, then the panel (PANEL.md 11)."""

import atexit
import threading
from typing import TYPE_CHECKING, Any

from nbflow.ids import new_uid
from nbflow.jupyter import fallback
from nbflow.jupyter.words import say
from nbflow.store.views import InstanceView

if TYPE_CHECKING:
    from nbflow.engine.instance import WorkflowInstance

REWRITE = 5.0
_VIEW = "application/vnd.jupyter.widget-view+json"
_EMPTY = {"text/html": "", "text/plain": ""}
_once = threading.Lock()
_at_exit = False


class Display:
    """Show an instance under the running cell.

    Args:
        inst: the instance.
        stable: leave times and generated ids out, so that two runs of a notebook give the same text.
        headless: nobody looks; the twin alone is written, once, by `finish`.
        line: what the cell did, first in the twin: "resumed embed-nov: 812 steps from history".

    Attributes:
        id: what the panel in its output knows it by: its twin says it, unless it is to be stable.
    """

    def __init__(self, inst: "WorkflowInstance", *, stable: bool = False, headless: bool = False, line: str = "") -> None:
        self._inst = inst
        self._stable, self._headless, self._line = stable, headless, line
        self._publisher = Publisher()
        self._twin_id, self.id = new_uid(), new_uid()
        self._shown = ""
        self._wanted: InstanceView | None = None
        self._written = float("-inf")
        self._open = False
        self._lock = threading.RLock()

    def show(self) -> None:
        """Write the twin, then the panel; in a terminal one line; headless nothing yet."""
        self._publisher = Publisher()
        if self._headless:
            return
        view = self._inst.view()
        if not self._publisher.in_kernel:
            self._write(view, update=False)
            return
        from nbflow.jupyter.panel import panel_for

        _empty_at_exit()
        self._write(view, update=False)
        panel = panel_for(self._inst)
        panel.attach(self)
        self._open = True
        bundle = {_VIEW: {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}}
        self._publisher.publish(bundle, self.id)

    def retell(self, line: str) -> None:
        """Say something else of what the cell did, where it has been said already."""
        self._line = line
        if not self._headless:
            self._write(self._inst.view(), update=True)

    def finish(self) -> None:
        """Write the twin as things stand now."""
        view = self._inst.view()
        if self._headless or not self._open:
            if self._headless or fallback.text(view) != self._shown:
                self._write(view, update=False)
            return
        self._write(view, update=True)

    def refresh(self, view: InstanceView | None, now: float) -> None:
        """Rewrite the twin if its line has changed, at most each 5 s; *view* None: only what had to wait."""
        with self._lock:
            if view is not None:
                self._wanted = view if self._text(view) != self._shown else None
            if self._wanted is None or not self._open or now - self._written < REWRITE:
                return
            wanted, self._wanted, self._written = self._wanted, None, now
            try:
                self._write(wanted, update=True)
            except Exception:  # noqa: BLE001 - a closed socket must not end the panel's thread
                pass

    def due_in(self, now: float) -> float | None:
        """Seconds until a rewrite that had to wait may happen."""
        wanted = self._wanted
        return None if wanted is None or not self._open else max(0.0, self._written + REWRITE - now)

    def close(self, view: InstanceView | None = None) -> None:
        """Empty the panel's output; the twin stays as it is, written once more where *view* is given."""
        with self._lock:
            self.empty(view)
            self._open = False

    def empty(self, view: InstanceView | None = None) -> None:
        """Empty the panel's output; the twin stays and is kept true, written at once where *view* is given."""
        with self._lock:
            if not self._open:
                return
            try:
                if view is not None:
                    self._write(view, update=True)
                self._publisher.publish(_EMPTY, self.id, update=True)
            except Exception:  # noqa: BLE001 - a closed socket or engine: what the twin says was true then
                pass

    def _text(self, view: InstanceView) -> str:
        return fallback.text(view)

    def _write(self, view: InstanceView, *, update: bool) -> None:
        with self._lock:
            self._shown = self._text(view)
            mark = "" if self._stable or self._headless else self.id
            bundle = fallback.bundle(self._inst, view, stable=self._stable, line=self._line, mark=mark)
            self._publisher.publish(bundle, self._twin_id, update=update)


class Publisher:
    """Where displays go: the publisher of the shell as it was when this was made.

    Attributes:
        in_kernel: whether there can be a page.
    """

    def __init__(self) -> None:
        self._found, self.in_kernel = _find_publisher()

    def publish(self, data: dict[str, Any], display_id: str, *, update: bool = False) -> None:
        """Display *data*, or *update* what is displayed under that id."""
        if update and not hasattr(self._found, "session"):  # a captured cell's: it only collects what it is given
            self._found, _ = _find_publisher()
            if not hasattr(self._found, "session"):
                return
        if self._found is None:
            say(data["text/plain"])  # plain Python: no display to publish to
            return
        self._found.publish(data=data, metadata={}, transient={"display_id": display_id}, update=update)


def _find_publisher() -> tuple[Any, bool]:
    """The display publisher of the running shell, held from now on: `%%capture` swaps it while another cell runs."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        return None, False
    return shell.display_pub, getattr(shell, "kernel", None) is not None


def _empty_at_exit() -> None:
    global _at_exit
    with _once:
        if not _at_exit:
            from nbflow.jupyter.panel import close_all

            atexit.register(close_all)
            _at_exit = True
