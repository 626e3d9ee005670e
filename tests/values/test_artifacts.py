"""Files of an instance: written whole, named by content, checked when read, nothing outside the folder within reach."""

import os
import stat

import numpy as np
import pytest

from nbflow.errors import UndecodableError, UsageError
from nbflow.values.artifacts import ArtifactFolder, ArtifactRef
from nbflow.values.codec import decode, encode, equal, reference


def test_the_name_is_the_content(files):
    uri, digest, size = files.write("bin", b"hello")
    assert uri == f"Ingest/a-1/{digest[:16]}.bin"
    assert size == 5
    assert files.read(uri) == files.read(uri, digest) == b"hello"
    assert (files.root / uri).read_bytes() == b"hello"


def test_the_same_content_is_stored_once_and_not_written_again(files):
    uri, *_ = files.write("bin", b"hello")
    before = (files.root / uri).stat()
    assert files.write("bin", b"hello")[0] == uri
    assert files.write("bin", lambda file: file.write(b"hello"))[0] == uri
    after = (files.root / uri).stat()
    assert after.st_ino == before.st_ino
    assert after.st_mtime_ns >= before.st_mtime_ns  # young again, so that `compact` takes it for wanted
    assert os.listdir(files.path) == [uri.rpartition("/")[2]]


def test_a_damaged_file_is_found_and_healed_by_writing_again(files):
    uri, digest, _ = files.write("bin", b"hello")
    (files.root / uri).write_bytes(b"jello")
    with pytest.raises(UndecodableError, match="damaged") as caught:
        files.read(uri, digest)
    assert uri in str(caught.value)
    assert caught.value.needs == f"file {uri}"
    with pytest.raises(UndecodableError):
        files.read(uri)
    assert files.write("bin", b"hello")[0] == uri
    assert files.read(uri) == b"hello"


def test_a_missing_file_is_named(files):
    uri, *_ = files.write("bin", b"hello")
    (files.root / uri).unlink()
    with pytest.raises(UndecodableError, match="No such file") as caught:
        files.read(uri)
    assert caught.value.needs == f"file {uri}"


def test_only_the_owner_can_read(files):
    uri, *_ = files.write("bin", b"hello")
    assert stat.S_IMODE((files.root / uri).stat().st_mode) == 0o600
    for folder in (files.root, files.path, files.path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "uri",
    ["../secret", "Ingest/a-1/../../secret", "/etc/passwd", "Ingest/a-2/0123456789abcdef.bin", "Ingest/a-1/.tmp", "Ingest/a-1/",
     "0123456789abcdef.bin", "Ingest/a-1//0123456789abcdef.bin", "Ingest/a-1/0123456789abcdef.bin\0", "Ingest/a-1/x/0123456789abcdef.bin"],
)  # fmt: skip
def test_nothing_outside_the_folder_is_read(files, uri):
    files.write("bin", b"hello")
    with pytest.raises(UndecodableError, match="is not in the folder"):
        files.read(uri)


@pytest.mark.parametrize("relative", ["..", "a/../b", "/abs", "", "a//b", ".hidden/x", "a/."])
def test_a_folder_outside_the_root_cannot_be_made(tmp_path, relative):
    with pytest.raises(UsageError):
        ArtifactFolder(tmp_path, relative)


def test_symbolic_links_are_not_followed(files, tmp_path):
    uri, digest, _ = files.write("bin", b"hello")
    outside = tmp_path / "outside.bin"
    (files.root / uri).rename(outside)
    (files.root / uri).symlink_to(outside)
    with pytest.raises(UndecodableError, match="symbolic link"):
        files.read(uri, digest)
    (files.root / uri).unlink()
    outside.rename(files.root / uri)
    files.path.rename(tmp_path / "elsewhere")
    files.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UndecodableError, match="symbolic link leads out"):
        files.read(uri, digest)


def test_a_root_that_is_reached_by_a_link_works(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files = ArtifactFolder(tmp_path / "link" / "artifacts", "W/i")
    assert files.read(files.write("bin", b"x")[0]) == b"x"


def test_a_failing_writer_leaves_nothing(files):
    def fail(file):
        file.write(b"half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        files.write("bin", fail)
    assert os.listdir(files.path) == []


def test_a_write_is_synced_before_it_has_its_name(files, monkeypatch):
    calls = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), real_sync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), real_replace(a, b))[1])
    files.path.mkdir(parents=True)
    files.write("bin", b"hello")
    assert calls == ["fsync", "rename", "fsync"]


@pytest.mark.parametrize(
    ("value", "ext"),
    [("x" * 2_000_000, "json"), (["x" * 1000] * 2000, "json"), (("x" * 2_000_000,), "json"), (b"x" * 2_000_000, "bin"),
     (bytearray(2_000_000), "bin"), (np.arange(3), "npy")],
    ids=["text", "list", "tuple", "bytes", "bytearray", "array"],
)  # fmt: skip
def test_large_values_and_arrays_go_to_a_file(files, value, ext):
    encoded = encode(value, files)
    assert encoded.data[:1] == b"a"
    assert len(encoded.data) < 1_000
    assert encoded.uri is not None
    assert encoded.uri.endswith("." + ext)
    assert (files.root / encoded.uri).exists()
    back = decode(encoded.data, files)
    assert type(back) is type(value)
    assert (back == value) if ext != "npy" else (back == value).all()
    assert len(str(encoded.preview)) < 9_000


def test_large_bytes_inside_a_value_get_a_file_of_their_own(files):
    value = {"a": [b"x" * 2_000_000, b"y"]}
    encoded = encode(value, files)
    assert encoded.data[:1] == b"t"
    assert encoded.uri is None
    assert decode(encoded.data, files) == value
    with pytest.raises(UndecodableError, match="folder of artefacts is not known"):
        decode(encoded.data, None)


# lazy results


def test_a_reference_reads_nothing_until_load(files):
    encoded = encode(np.arange(10), files)
    ref = reference(encoded, files)
    assert (ref.uri, ref.type) == (encoded.uri, "numpy.ndarray")
    assert ref.preview["shape"] == [10]
    stored = encode({"ref": ref}, files)
    (files.root / encoded.uri).rename(files.root / "away")
    again = decode(stored.data, files)["ref"]
    assert type(again) is ArtifactRef
    assert (again.uri, again.type, again.preview) == (ref.uri, ref.type, ref.preview)
    with pytest.raises(UndecodableError):
        again.load()
    (files.root / "away").rename(files.root / encoded.uri)
    assert (again.load() == np.arange(10)).all()
    assert again == ref


def test_a_reference_to_a_small_value_works_too(files):
    ref = decode(encode(reference(encode({"a": (1,)}, files), files), files).data, files)
    assert ref.uri is None
    assert ref.load() == {"a": (1,)}


@pytest.mark.parametrize(
    "value", [np.arange(5), {"deep": [np.arange(5)], "x": "y" * 2_000_000}, "x" * 2_000_000], ids=["a", "b", "c"]
)
def test_a_reference_stored_by_another_instance_brings_its_files_along(files, value):
    other = ArtifactFolder(files.root, "Child/b")
    first = encode(value, files)
    ref = reference(first, files)
    moved = encode([ref], other).data
    inline = encode([ref], None).data
    nested = encode(reference(encode([ref], files), files), other).data
    for path in files.path.iterdir():
        path.unlink()
    for data, place in ((moved, other), (inline, None)):
        (back,) = decode(data, place)
        assert equal(encode(back.load(), None).data, encode(value, None).data)
        assert equal(back.encoded, first.data)
    (back,) = decode(nested, other).load()
    assert equal(encode(back.load(), None).data, encode(value, None).data)
