import os

import pytest

from nbflow.store.descriptor import Descriptor


@pytest.fixture
def opened(tmp_path):
    made = []

    def make(name="file", **options):
        made.append(Descriptor(os.open(tmp_path / name, os.O_RDWR | os.O_CREAT, **options)))
        return made[-1]

    yield make
    for descriptor in made:
        descriptor.close()


def take_the_number_of(descriptor, path):
    """Close it behind its back and open something else under its number."""
    other = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(other, descriptor.number)
    os.close(other)


@pytest.mark.parametrize("seeks", [True, False], ids=["", "no far places"])
def test_a_number_that_leads_to_another_file_is_seen_and_left_alone(opened, tmp_path, monkeypatch, seeks):
    if not seeks:  # such as a file system whose files are smaller
        real = os.lseek
        monkeypatch.setattr(os, "lseek", lambda d, at, how: real(d, at, how) if how != os.SEEK_SET else real(d, -1, how))
    descriptor = opened()
    number = descriptor.number
    assert descriptor.good
    take_the_number_of(descriptor, tmp_path / "other")
    assert not descriptor.good
    descriptor.close()
    assert os.fstat(number).st_ino == (tmp_path / "other").stat().st_ino
    os.close(number)


def test_a_closed_number_is_seen(opened):
    descriptor = opened()
    os.close(descriptor.number)
    assert not descriptor.good


def test_the_same_file_at_another_offset_is_still_good(opened):
    descriptor = opened()
    os.lseek(descriptor.number, 3, os.SEEK_SET)
    assert descriptor.good


def test_a_folder_is_known_too(tmp_path):
    descriptor = Descriptor(os.open(tmp_path, os.O_RDONLY))
    assert descriptor.good
    descriptor.close()
    assert not descriptor.good


def test_looking_asks_for_no_state_of_the_file(opened, monkeypatch):
    descriptor = opened()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", None)
        assert descriptor.good
        assert descriptor.named


@pytest.mark.parametrize("tells", [True, False], ids=["", "no /proc"])
def test_a_file_has_a_name_until_the_last_is_removed(opened, tmp_path, monkeypatch, tells):
    if not tells:

        def refuse(_path):
            raise FileNotFoundError

        monkeypatch.setattr(os, "readlink", refuse)
    descriptor = opened()
    os.link(tmp_path / "file", tmp_path / "again")
    (tmp_path / "file").unlink()
    assert descriptor.named
    (tmp_path / "again").rename(tmp_path / "moved")
    assert descriptor.named
    (tmp_path / "moved").unlink()
    assert not descriptor.named


def test_a_file_that_another_replaced_has_no_name(opened, tmp_path):
    descriptor = opened()
    (tmp_path / "new").touch()
    (tmp_path / "new").replace(tmp_path / "file")
    assert not descriptor.named
    assert descriptor.good
