"""Models from the hub."""

from pathlib import Path

import huggingface_hub
import huggingface_hub.errors

from runtime.start_error import StartError

_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.tiktoken", "vocab.txt", "merges.txt"]


def fetch_from_hub(repository: str, file: str | None, *, revision: str | None, with_code: bool) -> Path:
    """One file, or what a checkpoint needs: no pickles, Python only `with_code`; StartError says in one sentence why not.
    The library shows progress and minds its own environment."""
    try:
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(repository, file, revision=revision))
        patterns = [*_HUB_PATTERNS, "*.py"] if with_code else _HUB_PATTERNS
        return Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except huggingface_hub.errors.GatedRepoError:
        reason = "it is gated, and the token in use (HF_TOKEN) may not read it"
    except huggingface_hub.errors.RevisionNotFoundError:
        reason = f"it has no revision {revision}"
    except huggingface_hub.errors.RepositoryNotFoundError:
        reason = "there is no such model on the hub (and no such path on this disk), or the token in use may not see it"
    except huggingface_hub.errors.LocalEntryNotFoundError:
        offline = huggingface_hub.constants.HF_HUB_OFFLINE
        reason = "HF_HUB_OFFLINE is set and it is not in the local cache" if offline else "the hub can't be reached"
    except (huggingface_hub.errors.HfHubHTTPError, huggingface_hub.errors.HFValidationError, OSError) as error:
        reason = f"the hub answered: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    raise StartError(f"--model-path {repository} can't be fetched: {reason}")
