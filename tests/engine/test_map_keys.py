"""A map whose code passes key= that it did not, or no longer does: no item gets the result of another (S57, S61)."""

import pytest

from tests.engine.conftest import failure_of


class Docs:
    """A workflow that maps over rows, what its bodies ran for, and what may be changed of it meanwhile."""

    def __init__(self, *ids, broken=(), stream=False, exceptions=False):
        self.rows, self.broken, self.ran = [self.row(each) for each in ids], set(broken), []
        self.key, self.stream, self.exceptions = None, stream, exceptions

    @staticmethod
    def row(number):
        return {"id": number, "text": f"doc {number}"}

    def embed(self, row):
        self.ran.append(row["id"])
        if row["id"] in self.broken:
            raise ValueError("the service is down")
        return f"vector of {row['id']}"

    async def run(self, event, step):
        found = step.map("embed", self.embed, list(self.rows), key=self.key, retries=0, return_exceptions=self.exceptions)
        return [value async for value in found] if self.stream else await found

    async def waiting(self, event, step):
        found = await self.run(event, step)
        await step.wait_for_event("stay", "go")
        return found

    def begin(self, lab):
        """Run it under its first key until an item fails; what comes is ran anew."""
        instance = lab.run(self.run)
        self.ran.clear()
        self.broken.clear()
        return instance

    @property
    def vectors(self):
        return [f"vector of {row['id']}" for row in self.rows]


def by_id(row):
    return str(row["id"])


def by_name(row):
    return f"row {row['id']}"


def go_on(lab, instance):
    instance.resume()
    return lab.finish(instance)


@pytest.mark.parametrize("key", [by_id, by_name])
def test_what_finished_before_the_map_had_a_key_is_known_by_its_content(lab, key):  # S57, S61
    docs = Docs(1, 2, 3, 4, 5, 6, broken=[5])
    instance = docs.begin(lab)
    docs.rows.insert(2, docs.row(7))
    docs.key = key
    assert go_on(lab, instance).output == docs.vectors
    assert docs.ran == [7, 5, 6]
    assert instance.step("embed").output == docs.vectors
    lab2 = lab.revive()
    lab2.workflow(docs.run)
    assert lab2.engine.get(instance.id).output == docs.vectors


def test_a_key_that_is_the_index_of_another_item_stops_the_map(lab):  # S57: the advice to pass key= gives nobody a wrong result
    docs = Docs(1, 2, 3, 4, 5, 6, broken=[5])
    instance = docs.begin(lab)
    docs.rows.insert(0, docs.row(0))
    go_on(lab, instance)
    assert "item 0 of 'embed' is not the one recorded; pass key= to step.map" in str(failure_of(instance))
    docs.key = by_id
    go_on(lab, instance)
    said = str(failure_of(instance))
    assert "item 0 of 'embed' is not known to be the one recorded under index 0 before the map had a key=" in said
    assert "let key= give text that is no mere number" in said
    assert docs.ran == []
    docs.key = by_name
    assert go_on(lab, instance).output == docs.vectors
    assert docs.ran == [0, 5, 6]


def test_a_key_that_is_the_index_of_an_item_that_nobody_can_compare_stops_the_map(lab):  # S57
    class Local:  # has no stored form
        def __init__(self, name):
            self.name = name

    world = {"items": [Local("a"), Local("b"), Local("c")], "key": None, "down": True}

    def body(item):
        if item.name == "c" and world["down"]:
            raise ValueError
        return item.name

    async def run(event, step):
        return await step.map("m", body, world["items"], key=world["key"], retries=0)

    instance = lab.run(run)
    world.update(down=False, key=lambda item: str("cab".index(item.name)))
    go_on(lab, instance)
    assert "item 0 of 'm' is not known to be the one recorded under index 1" in str(failure_of(instance))
    world["key"] = lambda item: item.name
    assert go_on(lab, instance).output == ["a", "b", "c"]


def test_items_of_the_same_content_have_each_one_of_their_results(lab):  # S57, S61
    items, given, world = ["x", "x", "y", "x", "bad"], [], {"key": None}

    def body(item):
        if item == "bad" and world["key"] is None:
            raise ValueError
        given.append(item)
        return len(given)

    async def run(event, step):
        numbers = iter(range(100))
        key = world["key"] and (lambda item: f"{item} {next(numbers)}")
        return await step.map("m", body, list(items), key=key, retries=0)

    instance = lab.run(run)
    world["key"] = True
    items.insert(0, "x")
    assert go_on(lab, instance).output == [1, 2, 4, 3, 5, 6]
    assert given == ["x", "x", "y", "x", "x", "bad"]


def test_results_stay_with_their_items_when_key_is_no_longer_passed(lab):  # S57
    docs = Docs(1, 2, 3, 4, 5, 6, broken=[5])
    docs.key = by_name
    instance = docs.begin(lab)
    docs.key = None
    docs.rows.insert(1, docs.row(9))
    assert go_on(lab, instance).output == docs.vectors
    assert docs.ran == [9, 5, 6]
    assert instance.step("embed").output == docs.vectors


def test_an_index_that_is_the_key_of_another_item_stops_the_map(lab):  # S57
    docs = Docs(1, 2, 3, 4, broken=[4])
    docs.key = by_id
    instance = docs.begin(lab)
    docs.key = None
    docs.rows[1] = docs.row(7)
    go_on(lab, instance)
    assert "item 1 of 'embed' is not known to be the one that key= named '1'; pass key=" in str(failure_of(instance))
    docs.key = by_id
    assert go_on(lab, instance).output == docs.vectors
    assert docs.ran == [7, 4]


@pytest.mark.parametrize("keys", [(by_name, None), (None, by_name), (by_name, None, by_name)])
@pytest.mark.parametrize("revived", [False, True])
def test_a_stream_hands_on_each_value_once_when_its_items_get_other_names(lab, keys, revived):  # S20, S57
    docs = Docs(1, 2, 3, 4, 5, 6, 7, 8, broken=[3, 5, 7], stream=True)
    instance = lab.run(docs.run)
    for key, fixed in zip((None, *keys), (3, 5, 7, None), strict=False):
        docs.key = key
        docs.broken.discard(fixed)
        if revived:
            lab = lab.revive()
            lab.workflow(docs.run)
            instance = lab.engine.get(instance.id)
        go_on(lab, instance)
    docs.broken.clear()
    assert go_on(lab, instance).output == docs.vectors
    assert sorted(docs.ran) == [1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8]


@pytest.mark.parametrize("stream", [False, True])
def test_retry_failed_finds_the_failed_items_under_their_new_names(lab, stream):  # S61
    docs = Docs(1, 2, 3, 4, broken=[1, 3], stream=stream, exceptions=True)
    instance = docs.begin(lab)
    docs.key = by_name
    instance.retry_failed()
    assert lab.finish(instance).output == docs.vectors
    assert docs.ran == [1, 3]
    assert instance.status().failed_items == 0


@pytest.mark.parametrize(
    ("before", "now", "ids", "stale"),
    [
        (None, by_id, [1, 2, 3], ()),
        (None, by_id, [0, 1, 2, 3], ("item '0' changed", "item '1' changed", "item '2' changed")),
        (None, by_name, [3, 1, 2], ("item '0' changed", "item '1' changed", "item '2' changed")),
        (by_name, None, [1, 2, 3], ()),
        (by_name, None, [2, 1, 3], ("item 'row 1' changed", "item 'row 2' changed")),
        (by_id, None, [1, 2, 3], ()),
        (by_id, None, [2, 1, 3], ("item '1' changed", "item '2' changed")),
    ],
)
def test_a_finished_map_is_stale_where_its_results_belong_to_other_items_than_the_list_has(lab, before, now, ids, stale):  # S57
    docs = Docs(1, 2, 3)
    docs.key = before
    lab.start(docs.waiting, id="one")
    lab.idle()
    docs.key, docs.rows = now, [docs.row(each) for each in ids]
    later = lab.revive()
    later.workflow(docs.waiting)
    later.idle()
    assert later.engine.get("one").step("embed").stale_why == stale


def test_a_handler_that_undoes_an_item_is_told_its_place_whatever_its_name_was(lab):  # API.md §1, S47
    told, world = [], {"key": str, "down": True}

    def body(item):
        if item == "c" and world["down"]:
            raise ValueError
        return item

    async def run(event, step):
        undo = lambda ctx: told.append((ctx.key, ctx.index))  # noqa: E731
        await step.map("m", body, "abcd", key=world["key"], rollback=undo, retries=0)
        raise LookupError

    instance = lab.run(run)
    told.clear()
    world.update(key=None, down=False)
    instance.restart()
    lab.finish(instance)
    assert sorted(told) == [("0", 0), ("1", 1), ("2", 2), ("3", 3)]
