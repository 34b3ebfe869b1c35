"""FineWeb from the Hugging Face hub, one Parquet file at a time.

Each file is downloaded whole at a pinned commit, read by row groups and removed; `datasets` in streaming mode
is not used. The reason is exact resume: a row of a file at a commit is a position that means the same
tomorrow, a row group opens at once, and the hub states every file's sha256, so what was read can be proven.
A stream's state is an opaque dictionary of the library's own, and a broken connection breaks into a document.
A sub-set ("sample-10BT") is looked up in the data set card, as `load_dataset` does.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.text_source import Listing, Position, RowBatch, SourceFile, read_files

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")


@dataclass(frozen=True)
class HubParquet:
    """A sub-set of a hub data set that is stored as Parquet. `endpoint` names a mirror of the hub."""

    repo: str = "HuggingFaceFW/fineweb"
    subset: str = "sample-10BT"
    revision: str = "main"
    split: str = "train"
    column: str = "text"
    endpoint: str | None = None

    @property
    def name(self) -> str:
        """As the manifest names it, with the revision as asked for; the listing adds the commit."""
        return f"{self.repo}/{self.subset}@{self.revision}"

    def listing(self, recorded: Listing | None = None) -> Listing:
        """The commit that `revision` is now, and its files; or what an unfinished preparation recorded.

        So a branch that moves on does not spoil a resume.
        """
        if recorded is not None and recorded.name == self.name:
            return recorded
        info = self._ask(lambda api: api.dataset_info(self.repo, revision=self.revision))
        patterns = self._patterns(info.card_data.to_dict() if info.card_data else {})
        found = {file.path: file for pattern in patterns for file in self._matching(pattern, str(info.sha))}
        if not found:
            raise UserError(f"{self.name} has no file that matches {', '.join(patterns)}; check the sub-set")
        return Listing(self.name, str(info.sha), tuple(found[path] for path in sorted(found)))

    def _patterns(self, card: dict[str, Any]) -> list[str]:
        configs = {str(entry["config_name"]): entry for entry in card.get("configs") or []}
        if self.subset not in configs:
            known = ", ".join(itertools.islice(configs, 8)) or "none"
            raise UserError(f"{self.repo} has no sub-set {self.subset!r}; its card names {known}")
        data_files = configs[self.subset]["data_files"]
        if isinstance(data_files, list) and all(isinstance(entry, dict) for entry in data_files):
            data_files = next((e["path"] for e in data_files if e["split"] == self.split), [])
        return [data_files] if isinstance(data_files, str) else list(data_files)

    def _matching(self, pattern: str, commit: str) -> list[SourceFile]:
        from huggingface_hub import RepoFile

        folder = "/".join(itertools.takewhile(lambda part: "*" not in part, pattern.split("/")[:-1]))
        entries = self._ask(
            lambda api: list(
                api.list_repo_tree(
                    self.repo, folder or None, recursive=True, revision=commit, repo_type="dataset"
                )
            )
        )
        return [
            SourceFile(file.path, file.size, file.lfs.sha256 if file.lfs else "")
            for file in entries
            if isinstance(file, RepoFile) and file.path.endswith(".parquet") and _matches(file.path, pattern)
        ]

    def batches(self, listing: Listing, start: Position, scratch: Path) -> Iterator[RowBatch]:
        """Rows of the files, each downloaded to `scratch` when its turn comes."""
        previous: list[Path] = []

        def locate(file: SourceFile) -> Path:
            while previous:
                previous.pop().unlink(missing_ok=True)
            previous.append(self._download(file, listing.revision, scratch))
            return previous[0]

        return read_files(listing, start, locate, self.column)

    def _download(self, file: SourceFile, commit: str, scratch: Path) -> Path:
        """A whole file that a killed run left is used again; the hub's client continues half of one."""
        path = scratch / file.path
        if not _is_whole(path, file):
            self._ask(
                lambda api: api.hf_hub_download(
                    self.repo, file.path, repo_type="dataset", revision=commit, local_dir=scratch
                )
            )
        if not _is_whole(path, file):
            path.unlink(missing_ok=True)
            raise UserError(f"{self.repo}: {file.path} came damaged (wrong size or sha256); run this again")
        return path

    def scratch_bytes(self, listing: Listing) -> int:
        """The largest file: one lies there at a time."""
        return max(file.size for file in listing.files)

    def _ask(self, request: Callable[[HfApi], T]) -> T:
        """Put a request to the hub; whatever goes wrong becomes one line with a remedy."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            GatedRepoError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            return request(HfApi(endpoint=self.endpoint))
        except OfflineModeIsEnabled as error:
            raise self._refusal("HF_HUB_OFFLINE is set", "unset it") from error
        except GatedRepoError as error:
            raise self._refusal(
                "it is gated", "accept its terms on the hub and run `hf auth login`"
            ) from error
        except RevisionNotFoundError as error:
            raise self._refusal(f"no revision {self.revision!r}", "name a branch, tag or commit") from error
        except RepositoryNotFoundError as error:
            raise self._refusal("no such data set, or it is private", "check its name") from error
        except Exception as error:  # the client's own kinds, its HTTP library's, Xet's, the disk's
            reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
            raise self._refusal(reason, "check network and disk, and run this again") from error

    def _refusal(self, reason: str, remedy: str) -> UserError:
        return UserError(
            f"the hub gives no {self.repo} ({reason}); {remedy}, or download it elsewhere and name the "
            "folder; finished shards are kept"
        )


def _matches(path: str, pattern: str) -> bool:
    """As a shell does: `*` stops at a slash, `**` does not."""
    return ("**" in pattern or path.count("/") == pattern.count("/")) and fnmatch.fnmatch(path, pattern)


def _is_whole(path: Path, file: SourceFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return not file.sha256 or sha256_file(path) == file.sha256
