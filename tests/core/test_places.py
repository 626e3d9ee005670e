"""The place that a body is, under which the steps in it are counted (S15)."""

from hypothesis import given
from hypothesis import strategies as st

from nbflow.core.items import HANDED
from nbflow.core.model import StepKey, StepType
from nbflow.core.names import inside

texts = st.text("ab#[]/\\1", min_size=1, max_size=6)
top = st.builds(StepKey, st.just(StepType.DO), texts, st.integers(1, 3))
items = st.builds(StepKey, st.just(StepType.MAP), texts, st.integers(1, 3), texts)


@st.composite
def bodies(draw):
    """The key of a step that has a body, some levels deep."""
    key = draw(top | items)
    for _ in range(draw(st.integers(0, 3))):
        key = StepKey(StepType.DO, draw(texts), draw(st.integers(1, 3)), inside(key))
    return key


@given(bodies(), bodies())
def test_no_two_bodies_are_the_same_place(one, other):
    assert (inside(one) == inside(other)) == (one == other)
    assert inside(one) != HANDED


def test_what_a_place_is_called():
    item = StepKey(StepType.MAP, "m", 1, "3")
    assert inside(item) == "m[3]"
    assert inside(StepKey(StepType.DO, "outer", 2)) == "outer#2"
    assert inside(StepKey(StepType.DO, "outer", 1, inside(item))) == "m[3]/outer"
    assert inside(StepKey(StepType.DO, "m[3]")) == "m\\[3\\]"


def test_a_place_a_hundred_bodies_deep_is_no_longer_than_a_key_may_be():
    key = StepKey(StepType.DO, "a" * 256)
    places = set()
    for _ in range(100):
        key = StepKey(StepType.DO, "a" * 256, 1, inside(key))
        places.add(inside(key))
    assert len(places) == 100
    assert max(map(len, places)) <= 2_400
