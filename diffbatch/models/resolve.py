"""What the user typed for a model -> a local folder. Done once, before any worker starts."""

from __future__ import annotations

import re
from pathlib import Path

from diffbatch.errors import PlanError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model(
    name: str, *, base: Path, revision: str | None = None, also: Path | None = None
) -> Path:
    """The folder of model `name`: "demo", a path (relative to `base`), or a hub id.

    `also`: where the caller has looked for it before; only the message needs it.
    A hub id is downloaded (or found in the cache) here, in the parent, so that ranks never race.
    """
    if name == "demo":
        from diffbatch.models.demo import demo_folder

        return demo_folder()
    path = Path(name).expanduser()
    path = path if path.is_absolute() else base / path
    if path.is_dir():
        return path.resolve()
    if _HUB_ID.fullmatch(name) and not name.startswith((".", "/")):
        return _download(name, revision)
    tried = [str(path)] if also is None else [str(also / name), str(path)]
    places = " nor ".join(dict.fromkeys(tried))
    raise PlanError(
        f"there is no folder {places}; give `demo`, a folder with a model_index.json, or a hub id "
        "such as org/name",
        place=f"model {name}",
    )


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.txt", "*.model", "*.jinja", "*.yaml", "*.safetensors"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise PlanError(
            f"{name} is neither a folder here nor to be had from the hub: {first_line}; check the "
            "name, the network and HF_HUB_OFFLINE, or give a local folder",
            place=f"model {name}",
        ) from error
