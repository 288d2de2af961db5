"""Writes the tables of inputs and outputs into the READMEs of Terraform's modules.

    python -m tests.terraform.readme_tables [--check]

``--check`` writes nothing and fails with the names of those that are stale.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.terraform.hcl_blocks import Block, HclError, blocks

MODULES = Path(__file__).parents[2] / "terraform" / "modules"
BEGIN = "<!-- BEGIN TABLES -->"
END = "<!-- END TABLES -->"


class ReadmeError(ValueError):
    """A README without a place for tables, or a variable without what goes there."""


def module_folders(modules: Path = MODULES) -> list[Path]:
    """Folders that hold a module, by name."""
    return sorted(path for path in modules.iterdir() if any(path.glob("*.tf")))


def updated(module: Path) -> str:
    """What the module's README should be. Raises `ReadmeError`, `HclError`."""
    readme = module / "README.md"
    if not readme.exists():
        raise ReadmeError(f"there is none: write a few lines, {BEGIN} and {END}")
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReadmeError(f"it has no place for the tables: write {BEGIN} and, below, {END}")
    return f"{before}{BEGIN}\n{tables(module)}{END}{after}"


def tables(module: Path) -> str:
    """Inputs and outputs as Markdown. Raises `ReadmeError`, `HclError`."""
    found: list[Block] = []
    for file in sorted(module.glob("*.tf"), key=lambda file: file.stem):
        try:
            found += blocks(file.read_text(encoding="utf-8"))
        except HclError as error:
            raise HclError(f"{file.name}, {error}") from error
    inputs = [_input_row(block) for block in found if block.kind == "variable"]
    outputs = [
        (f"`{block.labels[0]}`", _description(block)) for block in found if block.kind == "output"
    ]
    return (
        _table("Inputs", ("name", "type", "default", "what it is"), inputs)
        + _table("Outputs", ("name", "what it is"), outputs)
        + "\n"
    )


def _input_row(block: Block) -> tuple[str, ...]:
    for attribute in ("type", "description"):
        if attribute not in block.attributes:
            raise ReadmeError(f"variable {block.labels[0]} has no {attribute}")
    default = block.attributes.get("default")
    return (
        f"`{block.labels[0]}`",
        f"`{_one_line(block.attributes['type'])}`",
        "required" if default is None else f"`{_one_line(default)}`",
        _description(block),
    )


def _description(block: Block) -> str:
    if "description" not in block.attributes:
        raise ReadmeError(f"{block.kind} {block.labels[0]} has no description")
    text = block.attributes["description"]
    return text[1:-1].replace('\\"', '"')


def _one_line(expression: str) -> str:
    """Lines of an object are its items, which need commas when they stand in one line."""
    joined = ""
    for line in (" ".join(part.split()) for part in expression.splitlines() if part.strip()):
        if not joined:
            separator = ""
        elif joined[-1] in "({[":
            separator = " "
        elif line[0] in ")}]":
            joined = joined.removesuffix(",")
            separator = " "
        else:
            separator = " " if joined.endswith(",") else ", "
        joined += separator + line
    return joined


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [
        _row(columns),
        _row(["---"] * len(columns)),
        *(_row([cell.replace("|", r"\|") for cell in row]) for row in rows),
    ]
    return f"\n## {title}\n\n" + "".join(f"{line}\n" for line in lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str], modules: Path = MODULES) -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.terraform.readme_tables",
        description="Write the tables of inputs and outputs into the modules' READMEs.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    check = parser.parse_args(arguments).check
    faults = []
    for module in module_folders(modules):
        readme = module / "README.md"
        name = readme.relative_to(modules.parent.parent)
        try:
            text = updated(module)
        except (ReadmeError, HclError) as error:
            faults.append(f"{name}: {error}")
            continue
        if text == readme.read_text(encoding="utf-8"):
            continue
        if check:
            faults.append(f"{name}: stale, run python -m tests.terraform.readme_tables")
        else:
            readme.write_text(text, encoding="utf-8")
    sys.stderr.write("".join(f"{fault}\n" for fault in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
