"""What lies at the top of the repository goes into the wheel as it is, in ``hydrl/app``.

So a wheel has the one train.py, with its configs, scripts, documentation and the figures of others, and
``hydrl.config`` finds either. An editable install reads them where they are: listed in pyproject.toml,
train.py would be copied there too.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CHECKOUT_ONLY = {"scripts/compare_checkouts.py", "scripts/results.py", "scripts/results.yaml"}
TEXTS = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}


class App(BuildHookInterface):
    """Hatchling calls it for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the files."""
        if version == "standard":  # not "editable"
            scripts = {f"scripts/{file.name}" for file in Path(self.root, "scripts").glob("*.*")}
            pages = [*Path(self.root, "docs").rglob("*.md"), *Path(self.root, "docs").glob("*.svg")]
            texts = {str(page.relative_to(self.root)) for page in pages} | TEXTS
            for name in ("train.py", "configs", "docs/published", *texts, *(scripts - CHECKOUT_ONLY)):
                build_data["force_include"][name] = f"hydrl/app/{name}"
