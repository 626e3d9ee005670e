"""What `retries=`, `timeout=` and `config=` come to (API.md §1), and how long a retry waits (S22 to S24).

Pure. Every mistake is a `UsageError` naming step, key and value.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, cast, get_args

from nbflow.core import durations
from nbflow.core.names import quoted
from nbflow.errors import UsageError

Backoff = Literal["constant", "linear", "exponential"]

# A wait of 2,700 years is never served; more would leave the years that a datetime can count (S23 knows no cap).
_FOREVER = timedelta(days=1_000_000)
_MICROSECOND = timedelta(microseconds=1)
_RETRY_KEYS = ("limit", "delay", "backoff", "errors")


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """How a step is retried and how long an attempt may take, defaults filled in.

    Attributes:
        limit: retries, so attempts are one more (S22).
        delay: the base delay; not used where there is a delay function.
        delay_fn: the user's delay function.
        backoff: how the delay grows.
        timeout: of one attempt.
        errors: the only error classes that are retried, None for all.
        retries_given: the step says `retries=` itself, so errors that do not heal are retried too (S22).
        backoff_given: backoff is named, so that what a delay function gives is scaled (S24).
    """

    limit: int = 5
    delay: timedelta = timedelta(seconds=10)
    delay_fn: Callable[..., Any] | None = None
    backoff: Backoff = "exponential"
    timeout: timedelta = timedelta(minutes=10)
    errors: tuple[type[BaseException], ...] | None = None
    retries_given: bool = False
    backoff_given: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give what is recorded (S13): not the delay function, not the error classes."""
        body = as_mapping(self)
        if self.retries_given:
            body["retries_given"] = True
        if self.backoff_given:
            body["backoff_given"] = True
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any], live: "ResolvedConfig | None" = None) -> "ResolvedConfig":
        """Read what was recorded; the code's present config, *live*, gives what never is: delay function, error classes."""
        live = live or DEFAULT
        retries = body["retries"]
        recorded = "delay" in retries
        return cls(
            limit=retries["limit"],
            delay=timedelta(seconds=retries["delay"]) if recorded else live.delay,
            delay_fn=None if recorded else live.delay_fn,
            backoff=retries["backoff"],
            timeout=timedelta(seconds=body["timeout"]),
            errors=live.errors,
            retries_given=body.get("retries_given", False),
            backoff_given=body.get("backoff_given", False),
        )


DEFAULT: Final = ResolvedConfig()


def resolve(
    step_name: str, *, retries: object = None, timeout: object = None, config: object = None, base: ResolvedConfig = DEFAULT
) -> ResolvedConfig:
    """Resolve what a step call says about retries and timeout.

    Args:
        step_name: for messages.
        retries: the limit, or a mapping with limit, delay, backoff, errors.
        timeout: a duration.
        config: both of them in Cloudflare's spelling.
        base: what is not said is as here.

    Raises:
        UsageError: naming step, key and value.
    """
    step, at = f"step {step_name!r}", ""
    if config is not None:
        if retries is not None or timeout is not None:
            given = "retries=" if retries is not None else "timeout="
            msg = f"{step}: config= and {given} are both given; they are two spellings of the same, keep one"
            raise UsageError(msg)
        if not isinstance(config, Mapping):
            msg = f"{step}: config is {quoted(config)}; write a dict with 'retries' and 'timeout'"
            raise UsageError(msg)
        _known(f"{step}: config", config, ("retries", "timeout"))
        retries, timeout, at = config.get("retries"), config.get("timeout"), "config"
    if retries is None and timeout is None:
        return base
    inside = f"{step}: {at}" if at else f"{step}: "
    found = base if retries is None else _retries(f"{inside}['retries']" if at else f"{inside}retries", retries, base)
    if timeout is None:
        return found
    return replace(found, timeout=_timeout(f"{inside}['timeout']" if at else f"{inside}timeout", timeout))


def as_mapping(config: ResolvedConfig) -> dict[str, Any]:
    """Give the config as a user sees it in `ctx.config`, durations in seconds; no delay where a function decides it."""
    retries: dict[str, Any] = {"limit": config.limit}
    if config.delay_fn is None:
        retries["delay"] = durations.seconds(config.delay)
    retries["backoff"] = config.backoff
    return {"retries": retries, "timeout": durations.seconds(config.timeout)}


def delay_after(config: ResolvedConfig, failures: int) -> timedelta:
    """How long to wait after that many failed attempts (S23)."""
    return _grown(config.backoff, config.delay, failures)


def scaled(config: ResolvedConfig, delay: timedelta, failures: int) -> timedelta:
    """What a delay function's answer comes to: itself, unless backoff is named beside the function (S24)."""
    return _grown(config.backoff, delay, failures) if config.backoff_given else delay


def _grown(backoff: Backoff, delay: timedelta, failures: int) -> timedelta:
    match backoff:
        case "constant":
            factor = 1
        case "linear":
            factor = failures
        case "exponential":
            factor = 1 << min(failures - 1, 64)
    micros = delay // _MICROSECOND * factor
    return min(micros, _FOREVER // _MICROSECOND) * _MICROSECOND


def _retries(at: str, retries: object, base: ResolvedConfig) -> ResolvedConfig:
    if isinstance(retries, int):
        return replace(base, limit=_limit(at, retries), retries_given=True)
    if not isinstance(retries, Mapping):
        msg = f"{at} is {quoted(retries)}; write the number of retries, or a dict with some of {_listed(_RETRY_KEYS)}"
        raise UsageError(msg)
    _known(at, retries, _RETRY_KEYS)
    changes: dict[str, Any] = {"retries_given": True}
    if "limit" in retries:
        changes["limit"] = _limit(f"{at}['limit']", retries["limit"])
    if "delay" in retries:
        delay = retries["delay"]
        if callable(delay):
            changes["delay_fn"] = delay
        else:
            changes["delay"], changes["delay_fn"] = durations.duration(delay, what=f"{at}['delay']"), None
    if "backoff" in retries:
        changes["backoff"], changes["backoff_given"] = _backoff(f"{at}['backoff']", retries["backoff"]), True
    if "errors" in retries:
        changes["errors"] = _errors(f"{at}['errors']", retries["errors"])
    return replace(base, **changes)


def _known(at: str, given: Mapping[Any, Any], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            msg = f"{at} has the unknown key {quoted(key)} with the value {quoted(given[key])}; known: {_listed(known)}{hint}"
            raise UsageError(msg)


def _limit(at: str, limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        msg = f"{at} is {quoted(limit)}; the limit is the number of retries, a whole number from 0"
        raise UsageError(msg)
    return int(limit)


def _backoff(at: str, backoff: object) -> Backoff:
    if not isinstance(backoff, str) or backoff not in get_args(Backoff):
        msg = f"{at} is {quoted(backoff)}; write {_listed(get_args(Backoff))}"
        raise UsageError(msg)
    return cast(Backoff, str.__str__(backoff))


def _timeout(at: str, timeout: object) -> timedelta:
    found = durations.duration(timeout, what=at)
    if not found:
        msg = f"{at} is {quoted(timeout)}: no attempt could end in time; leave timeout= out for the default of 10 minutes"
        raise UsageError(msg)
    return found


def _errors(at: str, errors: object) -> tuple[type[BaseException], ...] | None:
    if errors is None:
        return None
    found = tuple(errors) if isinstance(errors, tuple | list) else (errors,)
    for each in found:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            msg = f"{at} is {quoted(errors)}; {quoted(each)} is no exception class: write a class or a tuple of classes"
            raise UsageError(msg)
    return found


def _listed(words: Collection[str]) -> str:
    return ", ".join(repr(word) for word in words)
