"""A model repository of a Hugging Face hub, of which single files are fetched into the cache."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError, first_line

_LOG = logging.getLogger(__name__)
# huggingface_hub would go on for minutes where a hub takes connections and never answers.
_TIMEOUT_S = 10
_COMMIT = re.compile("[0-9a-f]{40}")


class HubRepository:
    """The files of `hf://owner/name` at one commit, the newest one when first asked for.

    `hf://owner/name@revision` names a branch, a tag or a commit in its place. A commit is the
    only one that stays what it is; where it is in the cache, the hub is not asked for it.

    `HF_ENDPOINT` names another hub, `HF_TOKEN` opens private repositories, `HF_HOME` holds the
    cache, and `HF_HUB_OFFLINE=1` reads nothing but the cache, as in every program that uses
    huggingface_hub. Where the hub cannot be reached, the commit that was last fetched serves.

    Args:
        handle: `owner/name` or `owner/name@revision`.

    Raises:
        ConfigError: no such repository or revision, or the hub cannot be reached and nothing is
            cached.
    """

    def __init__(self, handle: str) -> None:
        # Imported here: half a second that local checkpoints need not wait.
        import huggingface_hub as hub

        self._handle = handle
        self._repo_id, at, named = handle.partition("@")
        revision = named if at else None
        if at and (not named or "@" in named):
            raise self._malformed()
        unreachable: Exception | None = None
        try:
            is_here = self._is_cached(revision)
            try:
                if not is_here:
                    hub.HfApi().repo_info(self._repo_id, revision=revision, timeout=_TIMEOUT_S)
            except hub.errors.HFValidationError:
                raise
            except Exception as error:  # of several libraries below
                if isinstance(error, hub.errors.HfHubHTTPError) and _is_answer(error):
                    raise
                unreachable = error
            folder = hub.snapshot_download(
                self._repo_id,
                revision=revision,
                allow_patterns=["config.json"],
                local_files_only=is_here or unreachable is not None,
            )
        except Exception as error:
            raise self._refusal("", unreachable or error) from error
        if unreachable is not None and not hub.constants.is_offline_mode():
            _LOG.warning("hf://%s is taken from the cache: %s", handle, first_line(unreachable))
        self._folder = Path(folder)
        self._names: set[str] | None = None
        try:
            tree = hub.get_cached_repo_tree(self._repo_id, revision=self._folder.name)
            self._names = {entry.path for entry in tree}
        except hub.errors.CachedRepoTreeNotFoundError:
            _LOG.info("hf://%s was cached without the list of its files", handle)

    def find(self, name: str) -> Path | None:
        """Returns the local path of a file, `None` if the repository does not have it.

        Raises:
            ConfigError: it cannot be fetched.
        """
        import huggingface_hub as hub

        path = self._folder / name
        if path.is_file():
            return path
        if self._names is not None and name not in self._names:
            return None
        commit = self._folder.name
        try:
            if not hub.constants.is_offline_mode():
                url = hub.hf_hub_url(self._repo_id, name, revision=commit)
                hub.get_hf_file_metadata(url, timeout=_TIMEOUT_S)
            return Path(hub.hf_hub_download(self._repo_id, name, revision=commit))
        except hub.errors.RemoteEntryNotFoundError:
            return None
        except Exception as error:
            known = hub.try_to_load_from_cache(self._repo_id, name, revision=commit)
            if known is hub.file_download._CACHED_NO_EXIST:
                return None
            raise self._refusal(name, error) from error

    def _is_cached(self, revision: str | None) -> bool:
        """Whether a revision is a whole commit hash whose configuration is here already."""
        import huggingface_hub as hub

        if revision is None or not _COMMIT.fullmatch(revision):
            return False
        found = hub.try_to_load_from_cache(self._repo_id, "config.json", revision=revision)
        return isinstance(found, str)

    def _malformed(self) -> ConfigError:
        return ConfigError(
            "A hub's handle must be hf://owner/name or hf://owner/name@revision."
            f" Received: hf://{self._handle}"
        )

    def _refusal(self, name: str, error: Exception) -> ConfigError:
        import huggingface_hub as hub

        what = f"hf://{self._handle}"
        if isinstance(error, hub.errors.HFValidationError):
            return self._malformed()
        if isinstance(error, hub.errors.RevisionNotFoundError):
            return ConfigError(f"{what}: {hub.constants.ENDPOINT} has no such revision.")
        if isinstance(error, hub.errors.RepositoryNotFoundError):
            return ConfigError(
                f"{what}: {hub.constants.ENDPOINT} has no such repository, or HF_TOKEN must hold"
                " a token that may read it."
            )
        if name:
            what += f": {name}"
        if hub.constants.is_offline_mode():
            return ConfigError(f"{what}: is not in the cache, and HF_HUB_OFFLINE is set.")
        reason = first_line(error)
        return ConfigError(f"{what}: could not be fetched from {hub.constants.ENDPOINT}: {reason}")


def _is_answer(error: Any) -> bool:
    return bool(error.response.status_code < 500)
