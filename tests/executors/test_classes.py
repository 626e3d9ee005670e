"""Classes of the notebook are the same wherever a body runs: those of errors, of their attributes, of values (API.md §2, §7, §9)."""

import dataclasses
import enum
import typing

import msgspec
import pytest

from nbflow import UsageError
from tests.executors.conftest import bench_of

SCALE = 10


class Client:
    class Busy(Exception):
        def __init__(self, text, seconds):
            super().__init__(text)
            self.seconds = seconds

    @dataclasses.dataclass
    class Part:
        number: int


class Code(enum.Enum):
    RATE = 429


@dataclasses.dataclass
class Place:
    x: int

    def scaled(self):
        return self.x * SCALE


class ApiError(Exception):
    def __init__(self, *args, **about):
        super().__init__(*args)
        self.__dict__.update(about)


class Number(enum.Enum):
    ONE = 1
    TWO = 2
    UNO = 1  # noqa: PIE796 - an alias


class Mode(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3
    SEE = 1


class Planet(enum.Enum):
    EARTH = (1, 2)
    MARS = (3, 4)

    def __init__(self, mass, _radius):
        self.mass = self._half = mass


class Doc(msgspec.Struct):
    title: str
    words: list = []

    def shout(self):
        return self.title.upper()


class Paper(Doc, kw_only=True, tag="paper", rename="camel", omit_defaults=True):
    first_author: str
    pages: int = 0
    KIND: typing.ClassVar[str] = "paper"

    def __post_init__(self):
        self.pages = self.pages or 7

    def shout(self):
        return super().shout() + self.KIND


class Frozen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at: float = msgspec.field(default=1.5, name="AT")
    made: list = msgspec.field(default_factory=lambda: [SCALE])


class Chain(msgspec.Struct):
    value: int
    next: typing.Optional["Chain"] = None

    def grown(self):
        return Chain(self.value + 1, self)


Of = typing.TypeVar("Of")


class Box(msgspec.Struct, typing.Generic[Of]):
    what: Of


# -- errors -------------------------------------------------------------------------------------------------------------


def test_an_error_whose_class_is_in_a_class_is_retried_and_caught(bench):  # API.md §1, §9
    def body():
        raise Client.Busy("later", 3)

    async def run(event, step):
        try:
            await step.do("it", body, on=bench.on, retries={"limit": 2, "delay": 0, "errors": (Client.Busy,)})
        except Client.Busy as error:
            return type(error).__qualname__, str(error), error.seconds

    instance = bench.wait(bench.start(run))
    assert instance.output == ("Client.Busy", "later", 3)
    assert bench.attempts(instance) == ["failed", "failed", "failed"]


@pytest.mark.parametrize("derived", [False, True])
def test_an_error_whose_class_is_in_a_function_is_retried(bench, derived):  # API.md §1
    class Busy(Exception):
        pass

    def body():
        class Busier(Busy):
            pass

        raise (Busier if derived else Busy)("later")

    instance = bench.do(body, retries={"limit": 1, "delay": 0, "errors": (Busy,)})
    assert bench.attempts(instance) == ["failed", "failed"]


def test_what_an_error_holds_of_the_notebooks_classes_is_kept(bench):  # API.md §9
    def body():
        raise ApiError("no", Code.RATE, code=Code.RATE, at=Place(3), parts=[{1: Client.Part(4)}], doc=Doc("a"), plain=5)

    async def run(event, step):
        try:
            await step.do("it", body, on=bench.on, retries=0)
        except ApiError as error:
            kept = error.args, error.code, error.at, error.parts, error.doc, error.plain
            return kept == (("no", Code.RATE), Code.RATE, Place(3), [{1: Client.Part(4)}], Doc("a"), 5)

    assert bench.wait(bench.start(run)).output is True


def test_a_delay_function_sees_what_an_error_holds(bench):  # API.md §1, S24
    seen = []

    def delay(ctx, error):
        seen.append((type(error).__name__, error.code))
        return 0

    def body():
        raise ApiError("no", code=Code.RATE)

    bench.do(body, retries={"limit": 1, "delay": delay})
    assert seen == [("ApiError", Code.RATE)]


def test_causes_and_members_of_groups_keep_their_classes_and_what_they_hold(bench):  # API.md §9
    def body():
        group = ExceptionGroup("both", [Client.Busy("later", 3), ApiError("no", code=Code.RATE)])
        raise ApiError("all", at=Place(1)) from group

    async def run(event, step):
        try:
            await step.do("it", body, on=bench.on, retries=0)
        except ApiError as error:
            found = error
        while not isinstance(found, ExceptionGroup):
            found = found.__cause__
        busy, other = found.exceptions
        return isinstance(busy, Client.Busy), busy.seconds, other.code == Code.RATE

    assert bench.wait(bench.start(run)).output == (True, 3, True)


def test_what_is_too_large_or_cannot_travel_is_said_to_be_lost(bench):  # API.md §9
    def body():
        import threading

        raise ApiError("no", code=Code.RATE, lock=threading.Lock(), many=[Place(x) for x in range(100_000)])

    async def run(event, step):
        try:
            await step.do("it", body, on=bench.on, retries=0)
        except ApiError as error:
            lost = []
            for name in ("lock", "many"):
                try:
                    getattr(error, name)
                except AttributeError as missing:
                    lost.append(str(missing).split(" was")[0])
            return error.code == Code.RATE, lost

    assert bench.wait(bench.start(run)).output == (True, ["'lock'", "'many'"])


# -- values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        Number.UNO,
        [Number.TWO, Number.ONE],
        Mode.SEE,
        Mode.BOTH,
        Doc("a", ["b"]),
        Paper("a", first_author="x"),
        Frozen(2.5),
        Frozen(),
        Chain(1, Chain(2)),
        Box(what=3),
        Box[int](what=Doc("a")),
        Client.Part(1),
    ],
)
def test_values_of_every_kind_of_class_travel_and_come_back(bench, value):  # API.md §2, §7
    assert bench.output(lambda x: x, value) == value
    assert type(bench.output(lambda x: [x], value)[0]) is type(value)


def test_enums_have_all_their_members_and_what_those_hold(bench):  # API.md §7
    def body():
        return (
            list(Number.__members__),
            Number["UNO"] is Number.ONE,
            Planet.MARS._half,
            Planet((1, 2)).mass,
            ~Mode.READ is Mode.WRITE,
        )

    assert bench.output(body) == (["ONE", "TWO", "UNO"], True, 3, 1, True)


def test_structs_are_made_read_and_written_as_in_the_notebook(bench):  # API.md §7
    def body(doc):
        paper = Paper("a", first_author="x")
        with pytest.raises(TypeError):
            Paper("a", [], "x")
        with pytest.raises(AttributeError):
            Frozen().at = 3
        return [
            doc.shout(),
            paper.shout(),
            paper.pages,
            msgspec.json.encode(paper),
            msgspec.json.decode(b"[2.5]", type=Frozen) == Frozen(2.5, [SCALE]),
            Chain(2).grown() == Chain(3, Chain(2)),
            msgspec.json.decode(b'{"value":1,"next":{"value":2}}', type=Chain).next.value,
            msgspec.structs.replace(doc, title="b").words,
        ]

    found = bench.output(body, Doc("a", ["w"]))
    assert found == ["A", "Apaper", 7, b'{"type":"paper","title":"a","firstAuthor":"x","pages":7}', True, True, 2, ["w"]]


@pytest.mark.parametrize("kind", ["processes", "pool"])
def test_a_class_that_comes_back_is_as_the_notebook_has_it(shared, kind, monkeypatch):  # its methods read the notebook's names
    bench = bench_of(kind, shared)
    before = Place.scaled
    with bench.engine:
        place = bench.output(lambda x: Place(x), 3)
    assert Place.scaled is before
    monkeypatch.setitem(globals(), "SCALE", 7)
    assert place.scaled() == 21


def test_an_edited_class_counts_in_a_worker_that_has_seen_the_former(away, monkeypatch):  # S56
    def body():
        return Place(2).scaled()

    assert away.output(body) == 20
    monkeypatch.setattr(Place, "scaled", lambda self: -self.x)
    assert away.output(body) == -2


def test_a_struct_that_cannot_be_made_over_there_is_refused_at_once_by_name(away):  # API.md §7
    class Kept(msgspec.Struct):
        at: object = None

    Kept.lock = __import__("threading").Lock()
    error = away.failure(lambda: Kept(), retries=3)
    assert isinstance(error, UsageError)
    assert "'Kept'" in str(error)
