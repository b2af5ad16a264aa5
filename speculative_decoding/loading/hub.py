"""Downloads models from the Hugging Face Hub, and finds them in its cache. The only module that uses the network.

A branch's entry in the cache (refs/BRANCH) is written after all files of its commit have been downloaded. An
interrupted download therefore preserves the previous copy, and a copy never mixes files from two commits.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ..checkpoints import ADAPTER_CONFIG, ADAPTER_FORMATS, CTRANSLATE2, FORMATS
from ..checkpoints.ctranslate2_vocabulary import SEPARATE, SPEECH
from ..errors import InputError
from .manifest import MANIFEST
from .names import FORMER_NAMES, SNAPSHOTS, cache_folder_name, name_of_cache_folder, other_names
from .tokenizer_base import TOKENIZER_FILES

HUB = "https://huggingface.co"
DEFAULT_BRANCH = "main"
SHARD = re.compile(r"-\d+-of-(\d+)\.\w+$")
DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EACCES,
    errno.EEXIST,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
)
CONVERTED_WEIGHTS = "weights.npz"
SMALL_FILES = ("config.json", "generation_config.json", ADAPTER_CONFIG, *TOKENIZER_FILES)
CTRANSLATE2_FILES = (*SEPARATE, *SPEECH)  # besides those of tokenizers
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


class UnknownModel(InputError):
    """A name that may be misspelled: the Hub has no such model, or is unreachable and the cache has no copy.

    reason: the part of the message that follows "model NAME: not a local folder, ".
    is_unreached: whether the Hub could not be reached, in which case the model may exist.
    """

    def __init__(self, name: str, reason: str, way_out: str, *, is_unreached: bool = False) -> None:
        super().__init__(f"model {name!r}: not a local folder, {reason}", way_out=way_out)
        self.reason = reason
        self.is_unreached = is_unreached


class HubError(Exception):
    """An error raised by huggingface_hub. `reason` is the original exception, which may be of any class."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class Snapshot:
    """A commit's folder in the Hub's cache."""

    name: str
    folder: Path

    @classmethod
    def find(cls, name: str, revision: str | None = None) -> Snapshot | None:
        """Return the cached copy of a branch, tag or commit, or None if there is none."""
        repository = cache() / cache_folder_name(name)
        commit = revision or DEFAULT_BRANCH
        with suppress(OSError, ValueError):
            commit = (repository / "refs" / commit).read_text(encoding="utf-8").strip()
        folder = repository / SNAPSHOTS / commit
        return cls(name, folder) if re.fullmatch(r"\w+", commit) and folder.is_dir() else None

    def files(self) -> set[str]:
        """Return the files' names, relative to the folder. Broken links are left out."""
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def listed_files(self) -> set[str]:
        """Return the names of all files in the commit, or an empty set if the cache contains no list of them."""
        try:
            from huggingface_hub import get_cached_repo_tree
            from huggingface_hub.errors import CachedRepoTreeNotFoundError
        except ImportError:  # an older version of huggingface_hub, which stores no list
            return set()
        with suppress(CachedRepoTreeNotFoundError):
            return {file.path for file in get_cached_repo_tree(self.name, revision=self.folder.name)}
        return set()


@dataclass(frozen=True)
class Wanted:
    """Selects the files of a model that conversion and loading read.

    gguf_file: a .gguf file of the model to use instead of its other weights.
    only_tokenizer: whether to leave out the weights.
    """

    gguf_file: str | None = None
    only_tokenizer: bool = False

    def needed_files(self, files: Collection[str]) -> list[str]:
        """Return the files to download, including only one set of weights."""
        return self.small_files(files) + self.weights(files)

    def small_files(self, files: Collection[str]) -> list[str]:
        """Return a model's files other than weights. Some are included only beside the weights that they belong to."""
        wanted = {*SMALL_FILES}
        wanted |= {MANIFEST} if CONVERTED_WEIGHTS in files else set()
        wanted |= {*CTRANSLATE2_FILES} if CTRANSLATE2 in files else set()
        return [file for file in files if file in wanted]

    def weights(self, files: Collection[str]) -> list[str]:
        """Return the weight files: a single file, or an index and its shards. Returns [] if there are no weights."""
        if self.only_tokenizer:
            return []
        if self.gguf_file is not None:
            return [self.gguf_file] if self.gguf_file in files else []
        for file in (*FORMATS, *ADAPTER_FORMATS):
            if file in files:
                return [file]
            if (index := f"{file}.index.json") in files:
                stem, _, ending = file.rpartition(".")
                shards = [file for file in files if re.fullmatch(rf"{stem}-.+\.{ending}", file)]
                numbered = [file for file in shards if SHARD.search(file)]
                return [index, *sorted(numbered or shards)]
        gguf_files = [file for file in files if re.fullmatch(r"[^/]+\.gguf", file)]
        if not gguf_files:
            return [CTRANSLATE2] if CTRANSLATE2 in files else []
        return gguf_files if len(gguf_files) == 1 else []

    def missing(self, files: Collection[str], listed: Collection[str]) -> list[str]:
        """Return the files missing from a copy that has `files`. listed: all files of the commit; empty if unknown."""
        if self.only_tokenizer:
            needed = [file for file in listed or files if file in TOKENIZER_FILES]
            return [file for file in needed if file not in files] if needed else ["its tokenizer"]
        weights = self.weights(files)
        is_model = not any(file.endswith(".gguf") or file in ADAPTER_FORMATS for file in weights)  # has a config.json
        expected = listed or (["config.json"] if is_model else [])
        missing = [file for file in self.small_files(expected) if file not in files]
        if is_whole(weights):
            return missing
        return missing + ([file for file in self.weights(listed) if file not in files] or ["its weights"])

    def require_some(self, name: str, files: Collection[str]) -> None:
        """Raise `InputError` if a Hub model with these files cannot be used."""
        if self.only_tokenizer:
            if not any(file in files for file in TOKENIZER_FILES):
                raise InputError(f"model {name!r} on the Hub has no tokenizer", way_out="name the model that it is for")
        elif not self.weights(files):
            gguf_files = ", ".join(sorted(file for file in files if file.endswith(".gguf"))) or "none"
            if self.gguf_file is not None:
                problem = f"model {name!r} on the Hub has no file {self.gguf_file!r}"
                raise InputError(problem, "gguf_file", f"name one of its GGUF files ({gguf_files})")
            known = ", ".join((*FORMATS, CTRANSLATE2))
            raise InputError(
                f"model {name!r} on the Hub has no weights that can be read (expected one of {known})",
                way_out=f"name another model, or one of its GGUF files ({gguf_files}) as gguf_file",
            )


def is_whole(weights: Sequence[str]) -> bool:
    """Return whether `Wanted.weights` found all shards, judging by the shard count in their names."""
    totals = [int(shard[1]) for shard in map(SHARD.search, weights) if shard is not None]
    if totals:
        return len(totals) == max(totals)
    return any(not file.endswith(".index.json") for file in weights)


def fetch(
    name: str, revision: str | None = None, gguf_file: str | None = None, *, only_tokenizer: bool = False
) -> Path:
    """Return the folder of a model in the Hub's cache, after downloading missing files.

    If the Hub denies access or is unreachable, a complete copy in the cache is used.

    Args:
        name: organisation/model, or one of `FORMER_NAMES`.
        revision: A branch, a tag or a commit.
        gguf_file: A .gguf file of the model to use instead of its other weights.
        only_tokenizer: Whether to download only the tokenizer's files.

    Raises:
        UnknownModel: The Hub has no such model, or the Hub is unreachable and the cache has no complete copy.
        InputError: The model cannot be downloaded for another reason, or contains no usable files.
    """
    wanted = Wanted(gguf_file, only_tokenizer)
    try:
        return download(name, revision, wanted)
    except HubError as error:
        reason = error.reason
    lacking: list[str] = []
    for each in (name, *other_names(name)):
        if (snapshot := Snapshot.find(each, revision)) is not None:
            lacking = wanted.missing(snapshot.files(), snapshot.listed_files())
            if not lacking:
                return snapshot.folder
    raise explanation(name, revision, reason, lacking) from reason


def download(name: str, revision: str | None, wanted: Wanted) -> Path:
    """Download the wanted files. Raises `HubError` if the Hub does not answer or denies access."""
    require_address()
    from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url, snapshot_download

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    with hub_errors():
        info = HfApi().model_info(name, revision=revision, timeout=timeout)
    listed = [file.rfilename for file in info.siblings or []]
    wanted.require_some(name, listed)
    files = wanted.needed_files(listed)
    # All files come from one commit, which may already have been downloaded under another name of the same model.
    for each in dict.fromkeys((name, *other_names(name), info.id)):
        snapshot = Snapshot.find(each, info.sha)
        if snapshot is not None and snapshot.files().issuperset(files):
            break
    else:
        with hub_errors():
            # Anyone may list the files of a gated model, so check access to one of them before progress bars appear.
            get_hf_file_metadata(hf_hub_url(name, files[0], revision=info.sha), timeout=timeout)
            folder = snapshot_download(name, revision=info.sha, allow_patterns=[glob.escape(file) for file in files])
        snapshot = Snapshot(name, Path(folder))
    write_reference(snapshot, revision)
    return snapshot.folder


def write_reference(snapshot: Snapshot, revision: str | None) -> None:
    """Record that a branch or tag points to this commit. huggingface_hub would do so before the download completes."""
    commit = snapshot.folder.name
    if revision == commit or Snapshot.find(snapshot.name, revision) == snapshot:
        return
    path = snapshot.folder.parents[1] / "refs" / (revision or DEFAULT_BRANCH)
    with suppress(OSError):  # a read-only cache is still usable
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        partial.write_text(commit, encoding="utf-8")
        partial.replace(path)


@contextmanager
def hub_errors() -> Iterator[None]:
    """Convert every network, Hub or disk error that huggingface_hub raises to a `HubError`.

    Its HTTP client differs between versions, so the client's errors have no common class. Use this context only around
    calls to huggingface_hub, so that bugs in this program are not mistaken for network errors.
    """
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    of_clients = [error for client in clients for error in (client.HTTPError, client.InvalidURL)]
    try:
        yield
    # ValueError: a response that is not JSON, or an invalid proxy. KeyError: a response that lacks the fields of a
    # model. ImportError: a proxy that requires another package. RuntimeError: errors raised by hf_xet.
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, *of_clients) as error:
        raise HubError(error) from error


def explanation(name: str, revision: str | None, reason: Exception, lacking: Sequence[str]) -> InputError:
    """Return the error for a model that cannot be downloaded. lacking: the files that its cached copy lacks."""
    from huggingface_hub import constants, errors

    while isinstance(reason, errors.LocalEntryNotFoundError) and isinstance(reason.__cause__, Exception):
        reason = reason.__cause__  # huggingface_hub also searched its cache
    status = getattr(getattr(reason, "response", None), "status_code", None)
    model = f"model {name!r}"
    if isinstance(reason, errors.GatedRepoError):
        problem = f"{model} is gated: the Hub gives it only to accounts that have accepted its licence"
        return InputError(problem, way_out=f"accept the licence at {constants.ENDPOINT}/{name}, then {LOG_IN}")
    if isinstance(reason, errors.RevisionNotFoundError):
        problem = f"{model} has no revision {revision!r} on the Hub"
        return InputError(problem, "revision", "name a branch, a tag or a commit")
    if isinstance(reason, errors.RepositoryNotFoundError) or status == 404:
        settings = "" if constants.ENDPOINT == HUB else " and HF_ENDPOINT"
        way_out = f"check the name{settings}, or for a private model {LOG_IN}"
        return UnknownModel(name, "and not a public model on the Hub", way_out)
    if status in (401, 403):
        said = getattr(reason, "server_message", None)
        problem = f"{model}: the Hub refuses access ({said or f'status {status}'})"
        return InputError(problem, way_out=f"{LOG_IN} to a token that may read this model")
    if isinstance(reason, OSError) and reason.errno in DISK_ERRORS:
        problem = f"{model}: cannot be stored in the Hub's cache {cache()} ({os.strerror(reason.errno)})"
        return InputError(problem, way_out="free space there, or set HF_HOME to another folder")
    if isinstance(reason, errors.OfflineModeIsEnabled):
        problem = "HF_HUB_OFFLINE is set"
    elif status is not None:
        problem = f"the Hub answers with status {status}"
    elif isinstance(reason, ValueError | KeyError | ImportError | RuntimeError):
        problem = f"huggingface_hub fails ({type(reason).__name__}: {reason})"
    else:
        problem = f"the Hub cannot be reached ({type(reason).__name__})"
    if lacking:
        first = f"{lacking[0]} and {len(lacking) - 1} more" if len(lacking) > 1 else lacking[0]
        problem = f"{model}: its copy in the Hub's cache {cache()} lacks {first}, and {problem}"
        return InputError(problem, way_out="load it once with network access")
    return UnknownModel(
        name,
        f"not in the Hub's cache {cache()}, and {problem}",
        f"check the name, or run `python convert.py --model {name}` on a machine with network access, and copy "
        f"models/{name.rsplit('/', 1)[-1]} here",
        is_unreached=True,
    )


def require_address() -> None:
    """Raise `InputError` if HF_ENDPOINT would make importing huggingface_hub, and thus transformers, fail."""
    address = os.environ.get("HF_ENDPOINT", "")
    try:
        urlsplit(address)
    except ValueError as error:
        problem = f"HF_ENDPOINT: {address!r} is not an address ({error})"
        raise InputError(problem, way_out="unset it, or set it to the address of a Hub") from error


def cache() -> Path:
    """Return the folder of the Hub's cache, which can be set with HF_HOME or HF_HUB_CACHE."""
    require_address()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def is_known(name: str) -> bool:
    """Return whether a model with this name is known to exist on the Hub. Sends no request."""
    return name in FORMER_NAMES or (cache() / cache_folder_name(name)).is_dir()


def cached_names() -> list[str]:
    """Return the names of the models in the Hub's cache."""
    with suppress(OSError):
        return sorted(filter(None, map(name_of_cache_folder, os.listdir(cache()))))
    return []
