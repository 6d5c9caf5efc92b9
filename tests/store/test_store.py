"""Stores: what one rank writes the others read, whole, or they learn within the timeout that nobody wrote it."""

import os
import stat
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcp.errors import RendezvousError
from dlcp.store import FileStore, MemoryStore, Store, fetch

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    """Makes views of one store."""
    if request.param == "memory":
        store = MemoryStore(timeout_s=0.05)
        return lambda: store
    return lambda: FileStore(tmp_path / "job", timeout_s=0.05)


def test_they_are_stores(make):
    assert isinstance(make(), Store)


def test_text_is_utf8_and_the_last_value_counts(make):
    make().set("a", "é")
    assert make().get("a") == b"\xc3\xa9"
    make().set("a", b"\x00\xff")
    assert make().get("a") == b"\x00\xff"
    make().set("a", b"")
    assert make().get("a") == b""


def test_a_missing_key_is_named_after_the_timeout(make):
    with pytest.raises(RendezvousError, match=r"'rank/3'.* within 0\.05 s"):
        make().get("rank/3")
    make().set("rank/1", "x")
    with pytest.raises(RendezvousError, match=r"'rank/2'.* within 0\.01 s"):
        make().wait(["rank/1", "rank/2"], timedelta(seconds=0.01))
    with pytest.raises(RendezvousError, match=r"'rank/2'.* within 0 s"):
        fetch(make(), "rank/2", 0)
    assert fetch(make(), "rank/1", 0) == b"x"


def test_get_waits_for_a_later_set(make):
    got = []
    reader = threading.Thread(target=lambda: got.append(fetch(make(), "late", 60)))
    reader.start()
    make().set("other", "no")
    make().set("late", "yes")
    reader.join(60)
    assert got == [b"yes"]


@given(st.dictionaries(KEYS, st.binary(max_size=50), max_size=20))
def test_any_keys_keep_apart(tmp_path_factory, values):
    store = FileStore(tmp_path_factory.mktemp("store"), timeout_s=0)
    for key, value in values.items():
        store.set(key, value)
    assert {key: store.get(key) for key in values} == values


@pytest.mark.parametrize("key", ["../escape", "/etc/passwd", "..", ".", "", "a/b", "a\x00b", "k" * 5000, "%2e"])
def test_keys_stay_in_the_directory(tmp_path, key):
    inner = tmp_path / "deep" / "job"
    store = FileStore(inner, timeout_s=0)
    store.set(key, b"1")
    assert store.get(key) == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert len(list(inner.iterdir())) == 1


def test_only_the_owner_may_read(tmp_path):
    store = FileStore(tmp_path / "job")
    store.set("cookie", b"secret")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "job").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "job").stat().st_mode) == 0o700


def test_a_place_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RendezvousError, match="file"):
        FileStore(tmp_path / "file")
    store = FileStore(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RendezvousError, match="cannot write 'a'"):
        store.set("a", "b")


WRITER = """
import sys
from dlcp.store import FileStore
store = FileStore(sys.argv[1])
rank = int(sys.argv[2])
store.set(f"address/{rank}", f"127.0.0.1:{rank}")
for turn in range(200):
    store.set("shared", bytes([rank]) * 20_000)
    value = store.get("shared")
    assert len(value) == 20_000 and len(set(value)) == 1, "a reader saw half a value"
print([store.get(f"address/{other}").decode() for other in range(3)])
"""


def test_processes_meet_and_never_see_half_a_value(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "job"), str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert outputs == ["['127.0.0.1:0', '127.0.0.1:1', '127.0.0.1:2']\n"] * 3
    assert not [name for name in os.listdir(tmp_path / "job") if name.startswith(".new-")]  # noqa: PTH208


def test_torch_stores_fit(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    for store in (dist.HashStore(), dist.PrefixStore("job", dist.FileStore(str(tmp_path / "f"), 1))):
        assert isinstance(store, Store)
        store.set("a", "x")
        assert fetch(store, "a", 1) == b"x"
        with pytest.raises(RendezvousError, match=r"'b' in \w+Store within 0.05 s") as caught:
            fetch(store, "b", 0.05)
        assert caught.value.__cause__ is not None


def test_a_store_with_only_set_and_get_will_do_and_its_failures_are_typed():
    class Mine(dict):
        def set(self, key, value, /):
            self[key] = value

        def get(self, key, /):
            return self[key]

    store = Mine()
    store.set("a", b"x")
    assert fetch(store, "a", 1) == b"x"
    with pytest.raises(RendezvousError, match="nothing under 'b' in Mine"):
        fetch(store, "b", 1)
