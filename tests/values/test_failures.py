"""Errors as data, and the copies that `run` sees (API.md §9)."""

import asyncio
import builtins
import importlib
import json
import subprocess
import sys
import traceback
import types
import warnings
from dataclasses import dataclass

import msgspec
import pytest

from nbflow import errors
from nbflow.errors import NonRetryableError, RetryAfter, StepError, StepTimeoutError
from nbflow.values.failures import LIMIT, decode_error, record_error


def copy(error, step="embed", attempts=3):
    record = json.loads(json.dumps(record_error(error)))
    return decode_error(record, step=step, attempts=attempts)


class Http(Exception):
    def __init__(self, status, response):
        super().__init__(f"status {status}")
        self.status = status
        self.response = response

    @property
    def url(self):
        return self.response.url


class Slotted(Exception):
    __slots__ = ("code", "lost")

    def __str__(self):
        return f"code {self.code}"


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int
    where: tuple


class OwnOs(OSError):
    def __init__(self, path):
        super().__init__(2, "gone", path)
        self.extra = object()


class Greedy(Exception):
    def __new__(cls, *args, c):
        return super().__new__(cls, *args)

    def __init__(self, a, b, *, c):
        super().__init__(a)
        self.c = c

    def __setattr__(self, name, value):
        super().__setattr__(name, value)

    def __getattr__(self, name):
        raise RuntimeError(name)


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Deadly(Exception):
    def __str__(self):
        raise KeyboardInterrupt

    def __repr__(self):
        raise SystemExit


def test_isinstance_text_args_and_attributes_are_kept():
    error = copy(Http(503, response=object()))
    assert isinstance(error, Http)
    assert type(error).__name__ == "Http"
    assert type(error).__module__ == __name__
    assert str(error) == "status 503"
    assert error.args == ("status 503",)
    assert error.status == 503
    with pytest.raises(AttributeError, match="'response' was not kept: decide inside the step, or raise your own error"):
        error.response  # noqa: B018
    with pytest.raises(AttributeError, match="was not kept"):
        error.url  # noqa: B018
    assert not hasattr(error, "anything")
    with pytest.raises(Http) as caught:
        raise error
    assert caught.value is error


def test_a_note_names_step_and_attempts():
    assert copy(ValueError("x")).__notes__ == ["step 'embed' failed after 3 attempts"]
    original = ValueError("x")
    original.add_note("mine")
    assert copy(original, attempts=1).__notes__ == ["mine", "step 'embed' failed after 1 attempt"]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"), ValueError(), ValueError(1, (2,)), KeyError("k"), OSError(2, "no", "f"), FileNotFoundError(2, "no", "f"),
        FileNotFoundError("text"), UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"), UnicodeEncodeError("utf-8", "a", 0, 1, "bad"),
        ImportError("x", name="n", path="p"), SyntaxError("bad", ("f", 1, 2, "text", 1, 3)), NameError("n", name="n"),
        AttributeError("a", name="a", obj=1), ZeroDivisionError("z"), RecursionError("r"), TimeoutError(), AssertionError((1, 2)),
        UserWarning("w"), StepTimeoutError("late"), NonRetryableError("no"), errors.EventTimeoutError("e"), BlockingIOError(11, "x", 5),
    ],
    ids=repr,
)  # fmt: skip
def test_builtins_and_our_own_are_of_the_very_class(error):
    back = copy(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back.args) == repr(error.args)
    for name in ("errno", "filename", "name", "path", "lineno", "object", "reason", "characters_written"):
        assert getattr(back, name, None) == getattr(error, name, None)


@pytest.mark.parametrize(
    "error",
    [FrozenError(1, (2, {3})), OwnOs("/x"), Greedy(1, 2, c=[3]), json.JSONDecodeError("m", "doc", 2), RetryAfter("30 seconds"),
     subprocess.CalledProcessError(3, ["ls"], b"out"), errors.UndecodableError("m", needs="class Doc"), asyncio.QueueEmpty("e")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_attributes_survive_whatever_the_constructor(error):
    back = copy(error)
    assert isinstance(back, type(error))
    assert str(back) == str(error)
    assert back.args == error.args
    for name, value in vars(error).items():
        if name != "extra":
            assert getattr(back, name) == value
    for name in ("errno", "filename", "strerror"):
        if isinstance(error, OSError):
            assert getattr(back, name) == getattr(error, name)


def test_slots_are_kept_and_lost_slots_say_so():
    error = Slotted()
    error.code, error.lost = 7, open
    back = copy(error)
    assert str(back) == "code 7"
    assert back.code == 7
    with pytest.raises(AttributeError, match="'lost' was not kept"):
        back.lost  # noqa: B018


def test_a_class_that_is_not_loaded_becomes_a_step_error(monkeypatch):
    record = record_error(Http(503, object()))
    monkeypatch.delitem(globals(), "Http")
    error = decode_error(record, step="embed", attempts=2)
    assert type(error) is StepError
    assert (error.type, error.message, error.attributes) == ("Http", "status 503", {"status": 503})
    assert str(error) == "status 503"
    assert "the error was a" in error.__notes__[0]


def test_a_final_class_becomes_a_step_error():
    import pydantic

    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    error = copy(caught.value)
    assert type(error) is StepError
    assert error.message == str(caught.value)
    assert error.type == "pydantic_core.ValidationError" or error.type.endswith("ValidationError")


@pytest.mark.parametrize("stop", [StopIteration(4), StopAsyncIteration("x")], ids=repr)
def test_stop_iteration_arrives_as_runtime_error(stop):
    error = copy(stop)
    assert type(error) is RuntimeError
    assert type(error.__cause__) is type(stop)
    assert error.__cause__.args == stop.args


class OwnBase(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("c"), OwnBase("b"),
     BaseExceptionGroup("g", [KeyboardInterrupt()])],
    ids=repr,
)  # fmt: skip
def test_what_is_no_exception_arrives_as_step_error(error):
    back = copy(error)
    assert type(back) is StepError
    assert back.message == str(error)
    assert back.type.endswith(type(error).__name__)


def test_causes_and_groups_are_restored():
    try:
        try:
            raise Http(500, None)
        except Http as cause:
            raise ExceptionGroup(
                "two", [ValueError("a"), ExceptionGroup("inner", [Http(1, object()), KeyError("k")])]
            ) from cause
    except ExceptionGroup as group:
        error = copy(group)
    assert type(error) is ExceptionGroup
    assert isinstance(error.__cause__, Http)
    assert error.message == "two"
    one, inner = error.exceptions
    assert (type(one), str(one)) == (ValueError, "a")
    assert isinstance(inner.exceptions[0], Http)
    matched, rest = error.split(Http)
    assert len(matched.exceptions) == 1
    assert rest is not None


class OwnGroup(ExceptionGroup):
    def __new__(cls, excs, code):
        self = super().__new__(cls, "own", excs)
        self.code = code
        return self


def test_a_group_of_ones_own_class():
    back = copy(OwnGroup([ValueError("x")], 5))
    assert isinstance(back, OwnGroup)
    assert back.code == 5
    assert str(back) == "own (1 sub-exception)"


def test_a_cycle_of_causes_ends():
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    assert str(copy(a).__cause__) == "b"


@pytest.mark.parametrize("error", [Unspeakable("x"), Deadly("x")], ids=["raises", "interrupts"])
def test_a_text_that_cannot_be_made_is_said(error):
    record = record_error(error)
    assert "its __str__ raised" in record["message"]
    assert isinstance(decode_error(record, step="s", attempts=1), type(error))


def failing(depth=0):
    if depth:
        return failing(depth - 1)
    raise Http(1, None)


def test_the_traceback_names_the_users_frames_and_none_of_ours():
    from nbflow.values.classes import needed_class

    def through_us():
        needed_class("nowhere:Doc", lambda cls: True, "")

    for call, last in ((failing, "failing"), (through_us, "through_us")):
        with pytest.raises(Exception) as caught:
            call()
        record = record_error(caught.value)
        assert record["frames"][-1]["name"].endswith(last)
        assert record["frames"][-1]["file"] == __file__
        assert record["frames"][-1]["text"]
        assert "nbflow/values/classes.py" not in record["traceback"]
        assert f"line {record['frames'][-1]['line']}, in" in record["traceback"]
        assert record["traceback"].rstrip().endswith(f"{record['type']}: {record['message']}")


def test_a_record_is_bounded():
    error = Http("x" * 1_000_000, ["y" * 1_000] * 100)
    error.__cause__ = ExceptionGroup("g" * 100_000, [Http("z" * 100_000, "w" * 7_000) for _ in range(100)])
    for n in range(500):
        setattr(error, f"attribute_{n}", "v" * 2_000)
    error.__notes__ = ["note" * 10_000] * 100
    with pytest.raises(Http) as caught:
        failing(200)
    error.__traceback__ = caught.value.__traceback__
    for case in (error, ExceptionGroup("g", [error] * 50), ValueError("🎈" * 100_000)):
        record = record_error(case)
        assert len(msgspec.json.encode(record)) <= LIMIT
        assert isinstance(decode_error(record, step="s", attempts=1), type(case))
        assert len(record["frames"]) <= 20


def test_lone_surrogates_in_a_message_can_be_stored():
    record = record_error(ValueError("\ud800"))
    msgspec.json.encode(record)
    assert str(decode_error(record, step="s", attempts=1)) == "\\ud800"


def test_a_copy_can_be_printed_noted_and_raised_again():
    error = copy(FrozenError(1, ()))
    text = "".join(traceback.format_exception(error))
    assert "failed after 3 attempts" in text
    again = copy(error, step="outer", attempts=1)
    assert isinstance(again, FrozenError)
    assert again.__notes__[-1] == "step 'outer' failed after 1 attempt"


@pytest.mark.parametrize(
    "error", [OwnOs("/x"), FrozenError(1, (2,)), Http(503, object()), ValueError("v")], ids=lambda e: type(e).__name__
)
def test_a_copy_recorded_again_is_the_same_copy(error):
    first = record_error(copy(error))
    assert {**first, "notes": [], "traceback": ""} == {**record_error(copy(copy(error))), "notes": [], "traceback": ""}
    again = copy(copy(error))
    assert isinstance(again, type(error))
    for name in ("errno", "filename", "status", "code"):
        assert getattr(again, name, None) == getattr(error, name, None)
    if isinstance(error, Http):
        with pytest.raises(AttributeError, match="'response' was not kept"):
            again.response  # noqa: B018


def test_an_empty_record_gives_a_step_error_and_no_step_no_note():
    assert type(decode_error({}, step="s", attempts=1)) is StepError
    assert not hasattr(decode_error(record_error(ValueError("x")), step="", attempts=0), "__notes__")


def test_a_long_message_is_exact_up_to_16000_characters():
    assert str(copy(ValueError("x" * 16_000))) == "x" * 16_000
    assert type(copy(ValueError("x" * 16_000))) is ValueError


def test_the_notebook_side_can_name_files(monkeypatch):
    monkeypatch.setattr("nbflow.values.failures.name_file", lambda file: "Cell [7]")
    with pytest.raises(Http) as caught:
        failing()
    record = record_error(caught.value)
    assert record["frames"][0]["file"] == "Cell [7]"
    assert 'File "Cell [7]"' in record["traceback"]


# a few hundred real classes

LIBRARIES = [
    "asyncio",
    "concurrent.futures",
    "json",
    "subprocess",
    "socket",
    "ssl",
    "sqlite3",
    "zipfile",
    "tarfile",
    "configparser",
    "csv",
    "urllib.error",
    "http.client",
    "email.errors",
    "xml.etree.ElementTree",
    "xml.dom",
    "shutil",
    "pickle",
    "struct",
    "zlib",
    "lzma",
    "binascii",
    "decimal",
    "queue",
    "multiprocessing",
    "ftplib",
    "smtplib",
    "imaplib",
    "nntplib",
    "poplib",
    "getopt",
    "argparse",
    "locale",
    "optparse",
    "tokenize",
    "unittest",
    "uuid",
    "zoneinfo",
    "dataclasses",
    "enum",
    "inspect",
    "ctypes",
    "curses",
    "select",
    "signal",
    "string",
    "numpy.exceptions",
    "pandas.errors",
    "polars.exceptions",
    "pyarrow.lib",
    "duckdb",
    "pydantic",
    "pydantic.errors",
    "pydantic_core",
    "msgspec",
    "click.exceptions",
    "jsonschema.exceptions",
    "jinja2.exceptions",
    "httpx",
    "requests.exceptions",
    "urllib3.exceptions",
    "tornado.web",
    "tornado.iostream",
    "zmq.error",
    "IPython.core.error",
    "IPython.utils.capture",
    "traitlets",
    "nbformat",
    "nbclient.exceptions",
    "nbconvert.utils.exceptions",
    "papermill.exceptions",
    "jupyter_client.kernelspec",
    "jupyter_core.application",
    "matplotlib",
    "PIL",
    "anyio",
    "yaml",
    "attr.exceptions",
    "sklearn.exceptions",
    "scipy.linalg",
    "playwright.async_api",
    "hypothesis.errors",
    "pytest",
    "pluggy",
    "nbflow.errors",
    "fsspec.exceptions",
    "huggingface_hub.errors",
    "h11",
    "httpcore",
]


def exception_classes():
    found = {}
    modules = [builtins]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LIBRARIES:
            try:
                modules.append(importlib.import_module(name))
            except Exception:
                continue
        for module in modules:
            for value in list(vars(module).values()):
                if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, ExceptionGroup):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def made(cls):
    """An instance, by the constructor if some arguments please it, else without."""
    for args in (("text",), (), ("a", "b"), (1, "text", 2), ("a", b"b", 0, 1, "r"), (object(), "x"), ("a", "b", "c", "d", "e")):
        try:
            error = cls(*args)
            str(error)
        except Exception:
            continue
        return error
    return None


# Some of these classes complain at their end of the made-up arguments they were given here.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_hundreds_of_real_classes_keep_their_class_and_their_text():
    tried, as_class, wrong = 0, 0, []
    for name, cls in exception_classes().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = made(cls)
            if error is None:
                continue
            tried += 1
            back = copy(error)
        if issubclass(cls, StopIteration | StopAsyncIteration):
            assert type(back) is RuntimeError
            continue
        if str(back) != str(error):
            wrong.append((name, str(error), str(back)))
        elif isinstance(back, cls):
            as_class += 1
        elif type(back) is not StepError:
            wrong.append((name, type(back), ""))
    assert wrong == []
    assert tried >= 400
    assert as_class >= tried * 0.98


def test_decoding_imports_nothing():
    record = record_error(ValueError("x"))
    record["module"], record["qualname"] = "this", "Zen"
    before = set(sys.modules)
    assert type(decode_error(record, step="s", attempts=1)) is StepError
    assert set(sys.modules) == before
    record["module"], record["qualname"] = "builtins", "print"
    assert type(decode_error(record, step="s", attempts=1)) is StepError
    record["module"], record["qualname"] = __name__, "types"
    assert isinstance(types, types.ModuleType)
    assert type(decode_error(record, step="s", attempts=1)) is StepError
