"""Where Terraform finds its AWS provider without a registry.

Knows no module.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

PROVIDER = Path("registry.terraform.io/hashicorp/aws")
_ROOTS = (
    "/usr/share/terraform/plugins",
    "/usr/local/share/terraform/plugins",
    "/var/lib/terraform",
    "/opt",
    "~/.terraform.d/plugins",
    "~/.local/share/terraform/plugins",
)
"""Where Terraform itself looks, and where packages are unpacked."""


def plugin_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """A folder for ``terraform init -plugin-dir``: ``TF_PLUGIN_DIR``, else one that is found.

    Raises ``FileNotFoundError`` for a ``TF_PLUGIN_DIR`` without the provider. ``None``: only the
    registry has it.
    """
    if named := environment.get("TF_PLUGIN_DIR"):
        folder = Path(named).expanduser()
        if not (folder / PROVIDER).is_dir():
            raise FileNotFoundError(f"TF_PLUGIN_DIR is {named}, which holds no {PROVIDER}")
        return folder
    return next(_found(), None)


def _found() -> Iterator[Path]:
    for name in _ROOTS:
        root = Path(name).expanduser()
        candidates = [root, *(sorted(root.glob("*")) if root.is_dir() else ())]
        yield from (folder for folder in candidates if (folder / PROVIDER).is_dir())
