"""A model repository of a Hugging Face hub, of which single files are fetched into the cache."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError

_LOG = logging.getLogger(__name__)
# huggingface_hub would go on for minutes where a hub takes connections and never answers.
_TIMEOUT_S = 10


class HubRepository:
    """The files of `hf://owner/name` at one commit, the newest one when first asked for.

    `HF_ENDPOINT` names another hub, `HF_TOKEN` opens private repositories, `HF_HOME` holds the
    cache, and `HF_HUB_OFFLINE=1` reads nothing but the cache, as in every program that uses
    huggingface_hub. Where the hub cannot be reached, the commit that was last fetched serves.

    Args:
        repo_id: `owner/name`.

    Raises:
        ConfigError: no such repository, or the hub cannot be reached and nothing is cached.
    """

    def __init__(self, repo_id: str) -> None:
        # Imported here: half a second that local checkpoints need not wait.
        import huggingface_hub as hub

        self._repo_id = repo_id
        unreachable: Exception | None = None
        try:
            try:
                hub.HfApi().repo_info(repo_id, timeout=_TIMEOUT_S)
            except hub.errors.HFValidationError:
                raise
            except Exception as error:  # of several libraries below
                if isinstance(error, hub.errors.HfHubHTTPError) and _is_answer(error):
                    raise
                unreachable = error
            folder = hub.snapshot_download(
                repo_id, allow_patterns=["config.json"], local_files_only=unreachable is not None
            )
        except Exception as error:
            raise self._refusal("", unreachable or error) from error
        if unreachable is not None and not hub.constants.is_offline_mode():
            _LOG.warning("hf://%s is taken from the cache: %s", repo_id, _line(unreachable))
        self._folder = Path(folder)
        self._names: set[str] | None = None
        try:
            tree = hub.get_cached_repo_tree(repo_id, revision=self._folder.name)
            self._names = {entry.path for entry in tree}
        except hub.errors.CachedRepoTreeNotFoundError:
            _LOG.info("hf://%s was cached without the list of its files", repo_id)

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

    def _refusal(self, name: str, error: Exception) -> ConfigError:
        import huggingface_hub as hub

        what = f"hf://{self._repo_id}"
        if isinstance(error, hub.errors.HFValidationError):
            return ConfigError(f"A hub's handle must be hf://owner/name. Received: {what}")
        if isinstance(error, hub.errors.RepositoryNotFoundError):
            return ConfigError(
                f"{what}: {hub.constants.ENDPOINT} has no such repository, or HF_TOKEN must hold"
                " a token that may read it."
            )
        if name:
            what += f": {name}"
        if hub.constants.is_offline_mode():
            return ConfigError(f"{what}: is not in the cache, and HF_HUB_OFFLINE is set.")
        reason = _line(error)
        return ConfigError(f"{what}: could not be fetched from {hub.constants.ENDPOINT}: {reason}")


def _is_answer(error: Any) -> bool:
    return bool(error.response.status_code < 500)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
