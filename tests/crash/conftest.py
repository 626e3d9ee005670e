from collections.abc import Iterator

import pytest

from tests.crash.hosts import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Forks processes that are to die."""
    process = Zygote()
    yield process
    process.stop()
