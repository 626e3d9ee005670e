"""The order of results in one activation (S20): of the recorded ones that were called, always the first."""

from hypothesis import given
from hypothesis import strategies as st

from nbflow.core.delivery import Deliveries
from nbflow.core.items import stream_key
from nbflow.core.model import StepKey, StepType

STREAM = stream_key(StepKey(StepType.MAP, "m"))
OTHER = stream_key(StepKey(StepType.MAP, "n"))


def step(number: int) -> StepKey:
    return StepKey(StepType.DO, "s", number)


@st.composite
def recorded_orders(draw):
    """Some hundred recorded results: steps once each, streams as often as they gave a value."""
    keys = [step(number) for number in range(1, draw(st.integers(1, 150)))]
    keys += [STREAM] * draw(st.integers(0, 60)) + [OTHER] * draw(st.integers(0, 5))
    return draw(st.permutations(keys))


@given(recorded_orders(), st.data())
def test_of_what_was_called_the_first_recorded_is_next(order, data):
    deliveries = Deliveries(order)
    left = list(order)
    called: dict[StepKey, None] = {}
    uncalled = list(dict.fromkeys(order))
    for _ in range(data.draw(st.integers(0, 60))):
        for key in data.draw(st.lists(st.sampled_from(uncalled), max_size=6, unique=True)) if uncalled else ():
            called[key] = None
            uncalled.remove(key)
        expected = next((key for key in left if key in called), None)
        found = deliveries.next(called)
        assert found == expected
        if found is None:
            continue
        assert deliveries.is_next(found) is False or found == left[0]
        if data.draw(st.integers(0, 4)) == 0:
            deliveries.put_back(found)
            continue
        left.remove(found)
        if found not in (STREAM, OTHER):
            del called[found]
            deliveries.leave(found)
        elif data.draw(st.integers(0, 9)) == 0:  # the stream is left
            del called[found]
            left = [key for key in left if key != found]
            deliveries.leave(found)


def test_a_result_behind_many_that_nobody_calls_is_found_as_quickly_as_at_the_head():
    many = 20_000
    deliveries = Deliveries([step(number) for number in range(1, 2 * many + 1)])
    looked = 0

    class Called(dict):
        def __contains__(self, key):
            nonlocal looked
            looked += 1
            return super().__contains__(key)

    for number in range(2, 2 * many + 1, 2):
        called = Called({step(number): None})
        assert deliveries.next(called) == step(number)
        deliveries.leave(step(number))
    assert looked < 40 * many
    assert len(deliveries.unreached()) == many
