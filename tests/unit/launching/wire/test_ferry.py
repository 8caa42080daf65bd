"""Files on their way: whole or not at all, and never out of their root."""

import hashlib
import os
from pathlib import Path

import pytest

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.launching.wire.ferry import PIECE, Ferry, Hold, inside


class Line:
    """A controller and the agents of some hosts, with lines that hold what is sent."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        self.lines: dict[str, list[dict]] = {}
        self.ferry = Ferry(self.run, lambda host, message: self.lines[host].append(message))
        self.back: list[dict] = []
        self.sent: list[dict] = []

    def host(self, name: str) -> None:
        self.lines[name] = []
        self.ferry.meet(name, lambda: len(self.lines[name]) * PIECE)

    def arrive(self, name: str, hold: Hold) -> list[dict]:
        """Let all arrive; gives what was no cargo."""
        other = []
        for _ in range(10000):
            self.ferry.pump()
            if not self.lines[name]:
                return other
            message = self.lines[name].pop(0)
            self.sent.append(message)
            if message["op"] == "cargo":
                hold.take(message)
            else:
                other.append(message)
        raise AssertionError("it never ends")

    def hold(self, root: Path) -> Hold:
        return Hold(lambda: root, self.back.append, lambda: 0)

    def return_(self, name: str, hold: Hold) -> list[dict]:
        hold.pump()
        other = [one for one in self.back if one["event"] != "cargo"]
        for message in self.back:
            if message["event"] == "cargo":
                self.ferry.take(name, message)
        self.back.clear()
        return other


@pytest.fixture
def line(tmp_path):
    line = Line(tmp_path)
    line.host("a")
    return line


def tree(top: Path) -> dict[str, bytes]:
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def fill(top: Path, seed: int = 0) -> dict[str, bytes]:
    """Write files of awkward sizes and names."""
    for number, size in enumerate((0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE)):
        path = top / f"deep {number}" / "x\u00e4.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes((seed + k) % 251 for k in range(size % 1000)) + bytes(size // 2))
        path.write_bytes((path.read_bytes() + os.urandom(size))[:size])
    return tree(top)


def order(line: Line, folder: Path, **more) -> dict:
    names = {"log": str(folder / "attempts" / "log"), "watch": None, "control": None}
    return (
        {"job": "t.1", "spec": {"trial_dir": str(folder)}, "carried": [str(folder)]} | names | more
    )


def test_a_job_finds_its_files_below_another_root(line, tmp_path):
    folder, store = line.run / "trials" / "t", tmp_path / "data" / "s.bp"
    expected, stored = fill(folder), fill(store, 3)
    hold = line.hold(tmp_path / "host")

    tops = line.ferry.load("a", folder, [store])
    line.ferry.send("a", {"op": "start"})

    assert line.arrive("a", hold) == [{"op": "start"}]
    assert tops == [str(folder), str(store)]
    assert tree(inside(hold.root, str(folder))) == expected
    assert tree(inside(hold.root, str(store))) == stored
    assert hold.error is None
    spec = {"trial_dir": str(folder), "deep": [{"store": f"{store}/md.0"}, str(store), "t", 3]}
    spec["near"] = f"{folder}-other"
    found = hold.localize(order(line, folder, spec=spec) | {"carried": tops})["spec"]
    assert found["trial_dir"] == f"{hold.root}{folder}"
    assert found["deep"] == [{"store": f"{hold.root}{store}/md.0"}, f"{hold.root}{store}", "t", 3]
    assert found["near"] == f"{folder}-other"


def test_a_store_travels_once_per_host_and_again_when_it_changed(line, tmp_path):
    folder, store = line.run / "t", tmp_path / "s.bp"
    fill(store)
    hold = line.hold(tmp_path / "host")
    line.ferry.load("a", folder, [store])
    line.arrive("a", hold)
    line.sent.clear()

    line.ferry.load("a", folder, [store])
    line.arrive("a", hold)
    assert line.sent == []

    changed = store / "deep 1" / "x\u00e4.bin"
    changed.write_bytes(b"other")
    line.ferry.load("a", folder, [store])
    line.arrive("a", hold)
    assert [message["path"] for message in line.sent] == [str(changed)]
    assert tree(inside(hold.root, str(store))) == tree(store)

    line.host("b")
    line.ferry.load("b", folder, [store])
    other = line.hold(tmp_path / "other")
    line.arrive("b", other)
    assert tree(inside(other.root, str(store))) == tree(store)


def test_little_is_read_ahead_of_a_slow_host_and_others_go_on(line, tmp_path):
    store = tmp_path / "s"
    store.mkdir()
    (store / "large").write_bytes(bytes(40 * PIECE))
    line.host("b")
    for host in ("a", "b"):
        line.ferry.load(host, line.run / "t", [store])

    for _ in range(100):
        line.ferry.pump()
        line.lines["b"].clear()

    assert len(line.lines["a"]) < 20, "it does not read: little waits for it"
    line.ferry.pump()
    assert line.lines["b"] == [], "all of it was sent"


def test_what_a_job_changed_comes_back_before_its_end_is_told(line, tmp_path):
    folder = line.run / "t"
    folder.mkdir()
    (folder / "trial.toml").write_text("a = 1\n")
    (folder / "old").write_text("old")
    hold = line.hold(tmp_path / "host")
    line.ferry.load("a", folder, [])
    line.arrive("a", hold)
    there = inside(hold.root, str(folder))
    made = order(line, folder)
    hold.localize(made)

    fill(there / "checkpoints")
    (there / "old").unlink()
    (there / "control").write_text("{}")
    (there / ".half.part").write_text("not yet")
    hold.offer(made)
    hold.follow({"event": "ended"})

    assert line.return_("a", hold) == [{"event": "ended"}]
    expected = tree(there / "checkpoints")
    assert tree(folder / "checkpoints") == expected
    assert set(tree(folder)) == {"trial.toml"} | {f"checkpoints/{name}" for name in expected}
    hold.offer(made)
    hold.pump()
    assert line.back == [], "nothing changed since"


def test_a_checkpoint_that_is_replaced_meanwhile_is_sent_as_it_was(line, tmp_path):
    folder = line.run / "t"
    hold = line.hold(tmp_path / "host")
    there = inside(hold.root, str(folder))
    there.mkdir(parents=True)
    (there / "last").write_bytes(b"1" * (2 * PIECE))
    hold.offer(order(line, folder))
    (there / "new").write_bytes(b"2")
    (there / "new").rename(there / "last")

    line.return_("a", hold)
    assert (folder / "last").read_bytes() == b"1" * (2 * PIECE)
    hold.offer(order(line, folder))
    line.return_("a", hold)
    assert (folder / "last").read_bytes() == b"2"


HOSTILE = ["../x", "/run/../../x", "x", "", "/run/a/../../../x", "/run/x\0y"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_leads_out_of_the_root_of_a_host(line, tmp_path, name):
    hold = line.hold(tmp_path / "deep" / "host")
    message = {"path": name, "data": "", "last": True, "checksum": hashlib.sha256().hexdigest()}
    hold.take(message)
    assert "it is not taken" in hold.error
    assert {path.name for path in tmp_path.rglob("*")} == {"run", "deep", "host"}


def test_no_link_leads_out_of_the_root_of_a_host(line, tmp_path):
    hold, outside = line.hold(tmp_path / "host"), tmp_path / "outside"
    outside.mkdir()
    (hold.root / "run").symlink_to(outside)
    checksum = hashlib.sha256().hexdigest()
    hold.take({"path": "/run/x", "data": "", "last": True, "checksum": checksum})
    assert "a link leads elsewhere" in hold.error
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", [*HOSTILE, "/etc/passwd", "{run}/../x", "{run}-other/x"])
def test_no_host_writes_or_removes_outside_of_the_run_directory(line, tmp_path, name):
    victim = tmp_path / "x"
    victim.write_text("mine")
    path = name.replace("{run}", str(line.run))
    checksum = hashlib.sha256().hexdigest()
    with pytest.raises(StorageError, match="a host sent|was sent"):
        line.ferry.take("a", {"path": path, "data": "", "last": True, "checksum": checksum})
    with pytest.raises(StorageError, match="a host sent|was sent"):
        line.ferry.take("a", {"path": path})
    assert victim.read_text() == "mine"


def test_no_host_writes_through_a_link_out_of_the_run_directory(line, tmp_path):
    (tmp_path / "outside").mkdir()
    (line.run / "t").symlink_to(tmp_path / "outside")
    checksum = hashlib.sha256().hexdigest()
    message = {"path": f"{line.run}/t/x", "data": "", "last": True, "checksum": checksum}
    with pytest.raises(StorageError, match="a link leads elsewhere"):
        line.ferry.take("a", message)


def test_a_link_in_a_folder_is_not_followed(line, tmp_path):
    folder, secret = line.run / "t", tmp_path / "secret"
    secret.write_text("secret")
    hold = line.hold(tmp_path / "host")
    there = inside(hold.root, str(folder))
    there.mkdir(parents=True)
    (there / "link").symlink_to(secret)
    (there / "away").symlink_to(tmp_path)
    hold.offer(order(line, folder))
    hold.pump()
    assert line.back == []


def test_a_damaged_file_is_not_taken(line, tmp_path):
    hold = line.hold(tmp_path / "host")
    hold.take({"path": "/run/x", "data": "AAAA", "last": True, "checksum": "00"})
    assert "was damaged on its way" in hold.error
    assert tree(hold.root) == {}
