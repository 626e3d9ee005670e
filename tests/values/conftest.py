import pytest

from nbflow.values.artifacts import ArtifactFolder


@pytest.fixture
def files(tmp_path):
    return ArtifactFolder(tmp_path / "artifacts", "Ingest/a-1")
