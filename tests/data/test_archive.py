import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedmef.data.archive import Archive, obtain
from fedmef.errors import FedmefError, UserError


def packed_tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def packed_zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return buffer.getvalue()


class Site:
    """A web site on this machine: what it serves, and what it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.root = ""

    def archive(self, name: str, content: bytes) -> Archive:
        self.files[f"/{name}"] = content
        return Archive("toys", f"{self.root}/{name}", hashlib.md5(content).hexdigest(), folder="toys-3")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            content = site.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.root = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield site
        server.shutdown()


def test_a_missing_data_set_is_downloaded_and_unpacked(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = site.archive("toys.tar.gz", packed_tar({"toys-3/a/b.txt": b"bear"}))
    folder = obtain(archive, tmp_path / "data", download=True)
    assert folder == tmp_path / "data" / "toys-3"
    assert (folder / "a" / "b.txt").read_bytes() == b"bear"
    assert {entry.name for entry in (tmp_path / "data").iterdir()} == {"toys-3", "toys.tar.gz"}
    printed = capsys.readouterr()
    assert f"downloading {archive.url} to {tmp_path / 'data' / 'toys.tar.gz'}\n" in printed.err
    assert printed.out == ""


def test_an_archive_without_a_folder_of_its_own_is_given_one(site: Site, tmp_path: Path) -> None:
    archive = site.archive("toys.zip", packed_zip({"train/b.txt": b"bear"}))
    assert (obtain(archive, tmp_path, download=True) / "train" / "b.txt").read_bytes() == b"bear"


def test_what_is_unpacked_already_is_not_downloaded(site: Site, tmp_path: Path) -> None:
    (tmp_path / "toys-3").mkdir()
    assert obtain(site.archive("toys.zip", b""), tmp_path, download=True) == tmp_path / "toys-3"
    assert site.asked == []


def test_an_archive_put_there_by_hand_is_used_without_a_download(site: Site, tmp_path: Path) -> None:
    content = packed_zip({"toys-3/b.txt": b"bear"})
    (tmp_path / "toys.zip").write_bytes(content)
    archive = site.archive("toys.zip", content)
    assert (obtain(archive, tmp_path, download=False) / "b.txt").read_bytes() == b"bear"
    assert site.asked == []


def test_a_damaged_archive_is_downloaded_again_only_if_allowed(site: Site, tmp_path: Path) -> None:
    archive = site.archive("toys.zip", packed_zip({"toys-3/b.txt": b"bear"}))
    (tmp_path / "toys.zip").write_bytes(b"half")
    with pytest.raises(UserError, match=r"toys\.zip is damaged .*delete it and run `fedmef data toys`"):
        obtain(archive, tmp_path, download=False)
    assert (obtain(archive, tmp_path, download=True) / "b.txt").read_bytes() == b"bear"


def test_without_download_the_expected_folder_is_named(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        obtain(site.archive("toys.zip", b""), tmp_path, download=False)
    assert f"expected the folder {tmp_path / 'toys-3'}; run `fedmef data toys`" in str(caught.value)


def test_a_download_with_a_wrong_checksum_is_not_kept(site: Site, tmp_path: Path) -> None:
    archive = site.archive("toys.zip", packed_zip({"toys-3/b.txt": b"bear"}))
    site.files["/toys.zip"] = packed_zip({"toys-3/b.txt": b"wolf"})
    with pytest.raises(FedmefError, match="cannot download"):
        obtain(archive, tmp_path, download=True)
    assert list(tmp_path.iterdir()) == []


def test_a_site_that_lacks_the_file_is_named_with_a_way_out(site: Site, tmp_path: Path) -> None:
    archive = site.archive("toys.zip", b"")
    site.files.clear()
    with pytest.raises(FedmefError, match=r"404.*get the file yourself and put it at .*toys\.zip") as caught:
        obtain(archive, tmp_path, download=True)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", ["toys.zip", "toys.tar.gz"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "junk"])
def test_a_damaged_archive_is_named(site: Site, tmp_path: Path, name: str, damage: str) -> None:
    pack = packed_zip if name.endswith("zip") else packed_tar
    whole = pack({"a.txt": bytes(range(256)) * 40})
    archive = site.archive(name, whole)
    (tmp_path / name).write_bytes(
        {"empty": b"", "truncated": whole[: len(whole) // 2], "junk": b"junk"}[damage]
    )
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        obtain(archive, tmp_path, download=False)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_named_and_leaves_no_half_of_a_folder(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    archive = site.archive("toys.zip", packed_zip({"toys-3/b.txt": b"bear"}))
    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(UserError, match=r"cannot unpack .*toys\.zip .*No space left.*make room in"):
        obtain(archive, tmp_path, download=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["toys.zip"]
