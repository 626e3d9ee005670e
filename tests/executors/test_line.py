"""What one executor is given at once, and what is held back from it (S27, API.md §7)."""

from types import SimpleNamespace

import pytest

from nbflow.engine.executors.line import Line, Losses


class Place:
    """Takes note of what it is given."""

    isolates = retired = ended = False

    def __init__(self):
        self.given = []

    def submit(self, attempt):
        self.given.append(attempt)

    def retire(self):
        self.ended = True


class Attempt:
    def __init__(self, name, *, suspect=False):
        self.name, self.alone, self.moved = name, True, False
        self.body = SimpleNamespace(losses=SimpleNamespace(suspect=suspect))

    def move(self):
        self.moved = True
        self.line.left(self)

    def __repr__(self):
        return self.name


@pytest.fixture
def line():
    return Line(Place())


def given_to(line, *attempts):
    for attempt in attempts:
        attempt.line = line
        line.add(attempt)
    return line.place.given


def test_suspects_run_one_at_a_time_with_nothing_beside_them(line):
    a, b, c = Attempt("a"), Attempt("b"), Attempt("c")
    s, t = Attempt("s", suspect=True), Attempt("t", suspect=True)
    assert given_to(line, a, b, s, t, c) == [a, b]
    line.left(a)
    assert line.place.given == [a, b]
    line.left(b)
    assert line.place.given == [a, b, s]
    line.left(s)
    assert line.place.given == [a, b, s, t]
    line.left(t)
    assert line.place.given == [a, b, s, t, c]
    assert [one.alone for one in (a, b, s, t, c)] == [False, False, True, True, True]


def test_a_suspect_that_is_withdrawn_while_it_waits_lets_the_others_go_on(line):
    a, s, c = Attempt("a"), Attempt("s", suspect=True), Attempt("c")
    given_to(line, a, s, c)
    assert line.waits(s)
    line.left(s)
    assert line.place.given == [a, c]


def test_where_each_body_has_a_process_of_its_own_nothing_waits(line):
    line.place.isolates = True
    attempts = [Attempt(name, suspect=True) for name in "abc"]
    assert given_to(line, *attempts) == attempts


def test_what_waits_is_moved_where_the_executor_was_replaced_and_goes_on_where_its_name_was_deleted():
    for replaced in (True, False):
        line = Line(Place())
        a, s, c = Attempt("a"), Attempt("s", suspect=True), Attempt("c")
        given_to(line, a, s, c)
        if replaced:
            line.end(replaced=True)
            assert line.place.given == [a]
            assert all(one.moved for one in (a, s, c))
        else:
            line.end(replaced=False)
            for one in (a, s, c):
                assert not line.place.ended
                line.left(one)
            assert line.place.given == [a, s, c]
        assert line.place.ended
        assert not line.busy


def test_only_what_was_lost_alone_is_ever_the_last_loss():
    innocent = Losses()
    assert all(innocent.add(begun=True, alone=False) for _ in range(20))
    assert innocent.suspect
    assert innocent.add(begun=True, alone=True)
    assert not innocent.add(begun=True, alone=True)


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_the_guilty_one_is_tried_three_times_more(beside):
    losses = Losses()
    went_on = [losses.add(begun=True, alone=number >= beside) for number in range(4)]
    assert went_on == [True, True, True, False]


def test_what_is_lost_in_the_queue_is_not_suspect():
    losses = Losses()
    assert all(losses.add(begun=False, alone=False) for _ in range(20))
    assert not losses.suspect
    assert not losses.add(begun=False, alone=True)
