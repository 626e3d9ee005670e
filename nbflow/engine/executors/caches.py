"""`functools.cache` over there: a model that a cell loads in a cached function is loaded once in each worker.

cloudpickle sends the wrapper by name, which no worker knows. Sent like any function it would be a new, empty cache in every
attempt. So each cached function of the notebook has a name of its own, under which workers keep its cache.
"""

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from nbflow import ids

KEPT = 64  # caches in one worker; the one used longest ago goes

CACHED: Any = functools._lru_cache_wrapper  # noqa: SLF001 - the class of what `functools.cache` gives

_names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_there: "OrderedDict[str, tuple[Any, list[Any]]]" = OrderedDict()
_lock = threading.Lock()


def reduced(cached: Any) -> tuple[Any, ...]:
    """How a cached function is pickled: by name, and what it wraps beside it, so that an edit of that counts."""
    with _lock:
        name = _names.setdefault(cached, ids.new_uid())
    parameters = cached.cache_parameters()
    return kept, (name, parameters["maxsize"], parameters["typed"]), cached.__wrapped__, None, None, _fill


def kept(name: str, maxsize: int | None, typed: bool) -> Any:
    """The cached function of that name in this worker."""
    with _lock:
        if name not in _there:
            wrapped: list[Any] = []

            def call(*args: Any, **keywords: Any) -> Any:
                return wrapped[0](*args, **keywords)

            made: Callable[..., Any] = functools.lru_cache(maxsize=maxsize, typed=typed)(call)
            _there[name] = made, wrapped
            while len(_there) > KEPT:
                _there.popitem(last=False)
        _there.move_to_end(name)
        return _there[name][0]


def _fill(cached: Any, wrapped: Any) -> None:
    """Put in what it wraps now."""
    with _lock:
        for made, holder in _there.values():
            if made is cached:
                holder[:] = [wrapped]
    functools.update_wrapper(cached, wrapped)
