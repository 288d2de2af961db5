"""Modules' READMEs tell of all inputs and outputs, and the generator of their tables works."""

from pathlib import Path

import pytest

from tests.terraform.hcl_blocks import HclError, blocks
from tests.terraform.readme_tables import BEGIN, END, main, module_folders, updated

pytestmark = pytest.mark.terraform

VARIABLES = """\
# A comment with a brace: {
variable "name" {
  description = "Of a \\"river\\", as ${upper("x}")} or y|z." # trailing
  type        = string

  validation {
    condition     = length(var.name) > 2 && var.name != "}"
    error_message = "Too short: \\"${var.name}\\"."
  }
}

/* Two
lines { */
variable "banks" {
  description = "Both."
  type = list(object({
    side  = string
    width = optional(number, 3)
  }))
  default = [
    { side = "left" },
    { side = "right" },
  ]
}
"""
OUTPUTS = 'output "mouth" {\n  description = "Where it ends."\n  value = { "a" = var.name }\n}\n'
README = f"# River\n\nShort.\n\n{BEGIN}\nold\n{END}\n\nMore.\n"
TABLES = """\

## Inputs

| name | type | default | what it is |
| --- | --- | --- | --- |
| `name` | `string` | required | Of a "river", as ${upper("x}")} or y\\|z. |
| `banks` | `list(object({ side = string, width = optional(number, 3) }))` \
| `[ { side = "left" }, { side = "right" } ]` | Both. |

## Outputs

| name | what it is |
| --- | --- |
| `mouth` | Where it ends. |

"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    folder = tmp_path / "terraform/modules/river"
    folder.mkdir(parents=True)
    (folder / "variables.tf").write_text(VARIABLES, encoding="utf-8")
    (folder / "outputs.tf").write_text(OUTPUTS, encoding="utf-8")
    (folder / "README.md").write_text(README, encoding="utf-8")
    return folder.parent


@pytest.mark.parametrize("module", module_folders(), ids=lambda module: module.name)
def test_a_modules_readme_is_up_to_date(module: Path) -> None:
    assert (module / "README.md").read_text(encoding="utf-8") == updated(module)


def test_tables_replace_what_stands_between_the_marks_and_nothing_else(modules: Path) -> None:
    assert main([], modules) == 0
    text = (modules / "river/README.md").read_text(encoding="utf-8")
    assert text == f"# River\n\nShort.\n\n{BEGIN}\n{TABLES}{END}\n\nMore.\n"
    assert main(["--check"], modules) == 0


def test_check_names_what_is_stale_and_writes_nothing(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check"], modules) == 1
    assert capsys.readouterr().err == (
        "terraform/modules/river/README.md: stale, run python -m tests.terraform.readme_tables\n"
    )
    assert (modules / "river/README.md").read_text(encoding="utf-8") == README


def test_the_other_modules_are_written_when_one_is_faulty(
    modules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (modules / "lake").mkdir()
    (modules / "lake/main.tf").write_text("", encoding="utf-8")
    assert main([], modules) == 1
    assert "terraform/modules/lake/README.md: there is none" in capsys.readouterr().err
    assert TABLES in (modules / "river/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("README.md", "# River\n", "no place for the tables"),
        ("README.md", f"{END}\n{BEGIN}\n", "no place for the tables"),
        ("variables.tf", 'variable "x" {\n  type = string\n}\n', "variable x has no description"),
        ("variables.tf", 'variable "x" {\n  description = "X."\n}\n', "variable x has no type"),
        ("outputs.tf", 'output "x" {\n  value = 1\n}\n', "output x has no description"),
        ("outputs.tf", 'output "x" {\n', "outputs.tf, line 1: } is missing"),
    ],
)
def test_what_cannot_be_told_is_named(
    modules: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, message: str
) -> None:
    (modules / "river" / file).write_text(text, encoding="utf-8")
    assert main([], modules) == 1
    error = capsys.readouterr().err
    assert error.startswith("terraform/modules/river/README.md: ")
    assert message in error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "line 1: expected a block"),
        ('a "b" {\n  c\n}\n', "line 2: expected an attribute or a block"),
        ('a "b" {\n  c = (1]\n}\n', "line 2: ] closes nothing"),
        ('a "b" {\n  c = "open\n}\n', "line 2: a string doesn't end"),
        ("\n/* open", "line 2: a comment doesn't end"),
    ],
)
def test_what_is_no_hcl_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(HclError, match=message):
        blocks(text)


def test_a_block_keeps_its_labels_and_the_outer_attributes() -> None:
    (block,) = blocks(
        'resource "a" "b" {\n  c = { d = 1 }\n  e {\n    f = 2\n  }\n  g = "$${"\n}\n'
    )
    assert (block.kind, block.labels) == ("resource", ("a", "b"))
    assert dict(block.attributes) == {"c": "{ d = 1 }", "g": '"$${"'}
