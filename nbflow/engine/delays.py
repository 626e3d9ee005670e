"""Whether a failed attempt is followed by another, and how long a user's delay function has it wait (S22, S24)."""

from functools import partial
from typing import TYPE_CHECKING

from nbflow.core.config import ResolvedConfig, scaled
from nbflow.core.durations import duration
from nbflow.core.replay import retries_left
from nbflow.engine.context import context_of, is_async
from nbflow.engine.threads import Outcome
from nbflow.engine.timers import Timer
from nbflow.errors import NonRetryableError, NotSerialisableError, RetryAfter, UsageError
from nbflow.values import elsewhere

if TYPE_CHECKING:
    from nbflow.engine.bodies import Body

LIMIT = 5.0  # seconds it has to answer
DOES_NOT_HEAL = (NameError, ImportError, SyntaxError)  # UnboundLocalError is a NameError (S22)


def may_retry(config: ResolvedConfig, error: BaseException, failed: int, home: str) -> bool:
    """Whether an attempt is left after *failed* ones, and may heal the error; *home* is the module of the workflow's class."""
    if not retries_left(config.limit, failed):
        return False
    if isinstance(error, NonRetryableError | NotSerialisableError):
        return False
    if isinstance(error, DOES_NOT_HEAL) and not config.retries_given and elsewhere.raised_in_notebook(error, home):
        return False
    return config.errors is None or isinstance(error, (*config.errors, RetryAfter))


class DelayQuestion:
    """One question: asked once per failed attempt that will be retried, answered within 5 s or the step fails."""

    def __init__(self, body: "Body", error: BaseException, failed: int) -> None:
        self._body, self._error, self._failed = body, error, failed
        self._answered = False

    def ask(self) -> Timer:
        """Ask; gives the timer of the limit."""
        body = self._body
        delay_fn = body.config.delay_fn
        assert delay_fn is not None
        call = partial(delay_fn, context_of(body), self._error)
        self._limit = body.engine.timers.after(LIMIT, partial(self._answer, (False, TimeoutError("no answer within 5 s"))))
        if is_async(delay_fn):

            async def answer() -> None:
                try:
                    self._answer((True, await call()))
                except BaseException as wrong:  # noqa: BLE001 - whatever it raises fails the step
                    self._answer((False, wrong))

            body.engine.loop.keep(body.engine.loop.create_task(answer(), context=body.context))
        else:
            body.engine.threads.submit(body.context.copy(), call, self._answer)
        return self._limit

    def _answer(self, outcome: Outcome) -> None:
        body = self._body
        if self._answered or not body.is_open:
            return  # it came too late
        self._answered = True
        self._limit.cancel()
        succeeded, value = outcome
        try:
            if not succeeded:
                raise value
            delay = duration(value, what=f"the delay function of step {str(body.key)!r}")
            body.retry(self._error, scaled(body.config, delay, self._failed))
        except BaseException as wrong:  # noqa: BLE001 - raised by user code or by the check of what it gave
            name = str(body.key)
            msg = f"the delay function of step {name!r} failed ({type(wrong).__name__}: {wrong}) after: {self._error}"
            failure = UsageError(msg)
            failure.__cause__ = self._error
            body.fail(failure)
