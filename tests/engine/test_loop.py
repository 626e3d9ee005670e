"""The workflow loop as asyncio's callers see it."""

import asyncio


def test_tasks_of_run_keep_the_names_they_are_given(lab):
    async def run(event, step):
        task = asyncio.create_task(step.do("a", named), name="mine")
        async with asyncio.TaskGroup() as group:
            other = group.create_task(step.do("b", named), name="of the group")
        return [task.get_name(), other.get_name(), await task, other.result()]

    async def named():
        return 1

    instance = lab.start(run)
    lab.idle()
    assert instance.output == ["mine", "of the group", 1, 1]


def test_the_task_factory_takes_the_name_as_later_versions_of_python_give_it(lab):
    async def run(event, step):
        loop = asyncio.get_running_loop()
        task = loop.get_task_factory()(loop, called(step), name="mine", context=None)
        return [task.get_name(), await task]

    async def called(step):
        return await step.do("a", named)

    async def named():
        return 1

    instance = lab.start(run)
    lab.idle()
    assert instance.output == ["mine", 1]
