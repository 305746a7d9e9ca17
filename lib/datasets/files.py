"""Find a registered file, check it, and download it when that is allowed.

The search goes through ``$BOOK_DATA``, the cache, and the mirrors. A file is hashed before its
first use in a process. A wrong hash is an error and ends the search: the next source is never
tried in silence.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from lib.datasets.registry import OutsideFile, cache_folder, data_folder, first_path

TIMEOUT = 20.0  # seconds without a byte before a mirror counts as dead
CHUNK = 1 << 16

_verified: dict[Path, tuple[int, int, str]] = {}  # path -> size, time of change, sha256


class ChecksumError(RuntimeError):
    """A file is not the one that the registry describes."""


class NotHereError(RuntimeError):
    """A file is neither in a local folder nor could it be downloaded."""


class MirrorError(RuntimeError):
    """One mirror did not deliver; the next may."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits.

    Args:
        path: The file.

    Returns:
        The hash.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     empty = Path(folder, "empty")
        ...     empty.touch()
        ...     sha256_of(empty)[:16]
        'e3b0c44298fc1c14'
    """
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_hash(path: Path, expected: str, advice: str, again: bool = False) -> None:
    """Refuse a file whose SHA-256 differs from ``expected``.

    A file that passed is not hashed again in this process while its size and its time of change
    stay the same.

    Args:
        path: The file.
        expected: 64 hexadecimal digits.
        advice: What to do about a wrong file; ends the error's message.
        again: Hash it even when it has passed before.

    Raises:
        ChecksumError: The hash differs. Names the file and both hashes.
    """
    stat = path.stat()
    state = (stat.st_size, stat.st_mtime_ns, expected)
    if not again and _verified.get(path) == state:
        return
    actual = sha256_of(path)
    if actual != expected:
        raise ChecksumError(mismatch(path, expected, actual, advice))
    _verified[path] = state


def mismatch(what: object, expected: str, actual: str, advice: str) -> str:
    """The text of a checksum error."""
    return f"wrong checksum of {what}\n  expected {expected}\n  actual   {actual}\n{advice}"


def find(file: OutsideFile, again: bool = False) -> tuple[str, Path] | None:
    """The verified local copy of a file.

    Args:
        file: Entry of the registry.
        again: Hash it even when it has passed before in this process.

    Returns:
        ``(where, path)`` with where ``"$BOOK_DATA"`` or ``"cache"``; None when neither has it.

    Raises:
        ChecksumError: The first copy found is not the registered file; the next place is not tried.
        ValueError: ``BOOK_DATA`` names no folder.
    """
    where, path = first_path(file)
    if path is None:
        return None
    advice = (
        "Delete it and run `python -m lib.datasets download` again."
        if where == "cache"
        else "Replace it in the folder that BOOK_DATA names, or unset BOOK_DATA."
    )
    check_hash(path, file.sha256, advice, again)
    return where, path


def is_offline() -> bool:
    """Whether the environment variable ``BOOK_OFFLINE`` forbids the network (set, and not 0)."""
    return os.environ.get("BOOK_OFFLINE", "").strip() not in ("", "0")


def fetch(file: OutsideFile, allow_download: bool = True) -> tuple[str, Path]:
    """The verified path of a file, downloaded into the cache when no local folder has it.

    Several processes may ask for the same file at once: one downloads, the others wait for it.

    Args:
        file: Entry of the registry.
        allow_download: False looks only here. ``BOOK_OFFLINE=1`` has the same effect.

    Returns:
        ``(where, path)`` with where ``"$BOOK_DATA"``, ``"cache"``, or the mirror's address.

    Raises:
        ChecksumError: What was found or downloaded is not the registered file.
        NotHereError: Not here and not to be had; says what to do.
    """
    found = find(file)
    if found:
        return found
    if not file.mirrors:
        reason = f"no mirror has it; it is a part of {file.part_of}, which can be downloaded"
        raise NotHereError(_not_here(file, reason))
    if is_offline() or not allow_download:
        reason = "BOOK_OFFLINE is set" if is_offline() else "downloads are not allowed here"
        raise NotHereError(_not_here(file, reason))
    target = cache_folder() / file.file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_beside(target, ".lock")):
            return find(file) or (_download(file, target), target)
    except OSError as error:
        raise NotHereError(
            _not_here(
                file, f"the cache cannot be used ({error}); BOOK_CACHE may name another folder"
            )
        ) from error


def _beside(target: Path, ending: str) -> Path:
    """A hidden companion of ``target`` in the same folder (so that a rename is atomic)."""
    return target.with_name(f".{target.name}{ending}")


def _not_here(file: OutsideFile, reason: str) -> str:
    """What is missing, why, and the three ways out."""
    folder = data_folder()
    looked = f"$BOOK_DATA ({folder}) and " if folder else ""
    other = (
        " Small digits need no file: load_mnist(..., source='embedded')."
        if file.dataset == "mnist"
        else ""
    )
    return (
        f"{file.file} is not here: looked in {looked}the cache ({cache_folder()}); {reason}\n"
        "Run `make data` with a network, or set BOOK_DATA to a folder that has the file "
        f"(layout in data/README.md).{other}"
    )


def _download(file: OutsideFile, target: Path) -> str:
    """Try each mirror in turn; move the checked file to ``target``; return the mirror used."""
    part = _beside(target, ".part")
    failures = []
    for mirror in file.mirrors:
        try:
            _download_from(mirror, file, part)
        except MirrorError as error:
            failures.append(f"{mirror}: {error}")
            print(f"{file.name}: mirror failed: {failures[-1]}", file=sys.stderr)
            continue
        os.replace(part, target)
        stat = target.stat()
        _verified[target] = (stat.st_size, stat.st_mtime_ns, file.sha256)
        return mirror
    raise NotHereError(_not_here(file, "no mirror delivered it:\n  " + "\n  ".join(failures)))


def _download_from(mirror: str, file: OutsideFile, part: Path) -> None:
    """Complete ``part`` from one mirror, then check its hash.

    An interrupted part is continued. If the whole then has the wrong hash, its beginning may be
    what is wrong, so the file is fetched once more from the start before anyone is blamed.
    """
    start = _transfer(mirror, file, part)
    actual = sha256_of(part)
    if actual != file.sha256 and start > 0:
        part.unlink()
        _transfer(mirror, file, part)
        actual = sha256_of(part)
    if actual != file.sha256:
        size = part.stat().st_size
        part.unlink()
        what = f"{file.file} as sent by {mirror} ({size} bytes, expected {file.bytes})"
        advice = (
            "Nothing was kept. If the official file has changed, mend data/registry.yml; otherwise "
            "trust neither this mirror nor the network in between."
        )
        raise ChecksumError(mismatch(what, file.sha256, actual, advice))


def _transfer(mirror: str, file: OutsideFile, part: Path) -> int:
    """Append to ``part`` what is missing: at most one byte more than registered.

    Returns:
        The byte from which on this mirror delivered; what lies before it was there already.

    Raises:
        MirrorError: No answer, an HTTP error, or an end before the announced one. What arrived
            stays in ``part`` and is continued by the next mirror or the next run.
    """
    start = part.stat().st_size if part.exists() else 0
    if start >= file.bytes:
        start = 0
    try:
        with _open(mirror, start) as answer:
            start = _first_byte(answer, start)
            received = _copy(answer, part, start, file)
            announced = answer.headers.get("Content-Length", "")
    except urllib.error.HTTPError as error:
        if error.code != 416 or not start:
            raise MirrorError(str(error)) from error
        part.unlink()  # longer than the mirror's file, so not a beginning of it
        return _transfer(mirror, file, part)
    missing = file.bytes - start - received
    if missing > 0 and not (announced.isdigit() and received == int(announced)):
        raise MirrorError(f"the connection ended {missing} bytes before the end of the file")
    return start


def _open(mirror: str, start: int) -> http.client.HTTPResponse:
    """Ask a mirror for a file from byte ``start`` on; an HTTP error is left to the caller."""
    headers = {"User-Agent": "what-the-student-learns/1"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(
            urllib.request.Request(mirror, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise MirrorError(str(error) or type(error).__name__) from error


def _first_byte(answer: http.client.HTTPResponse, start: int) -> int:
    """Where an answer begins: at ``start``, or at 0 from a mirror that cannot continue."""
    if answer.status != 206:
        return 0
    span = answer.headers.get("Content-Range", "")
    if not span.startswith(f"bytes {start}-"):
        raise MirrorError(f"asked for the file from byte {start} on, it sent {span!r}")
    return start


def _copy(answer: http.client.HTTPResponse, part: Path, start: int, file: OutsideFile) -> int:
    """Write the answer behind the first ``start`` bytes, with a progress bar; count the bytes."""
    received, limit = 0, file.bytes - start + 1
    bar = tqdm(total=file.bytes, initial=start, unit="B", unit_scale=True, desc=file.name)
    with bar, open(part, "r+b" if start else "wb") as stream:
        stream.seek(start)
        stream.truncate()
        while received < limit and (chunk := _read(answer, min(CHUNK, limit - received))):
            stream.write(chunk)
            received += len(chunk)
            bar.update(len(chunk))
    return received


def _read(answer: http.client.HTTPResponse, size: int) -> bytes:
    """The next bytes of an answer; a broken connection is the mirror's failure, not the disk's."""
    try:
        return answer.read(size)
    except (OSError, http.client.HTTPException) as error:
        raise MirrorError(str(error) or type(error).__name__) from error
