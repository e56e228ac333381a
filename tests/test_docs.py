"""The pages that are made from the code are those that are committed, and links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs.make_params import PAGE, page
from flows import workspace
from tasks.runtime import config

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_params_reference_is_up_to_date() -> None:
    made = page(yaml.safe_load((ROOT / "params.yaml").read_text()))
    assert made == PAGE.read_text(), "run `python -m docs.make_params` and commit docs/params.md"


def test_the_params_reference_names_every_key() -> None:
    def keys(value: object) -> set[str]:
        return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()

    text = PAGE.read_text()
    wanted = keys(yaml.safe_load((ROOT / "params.yaml").read_text()))
    assert {key for key in wanted if f"`{key}`" not in text and f"## {key}\n" not in text} == set()


@pytest.mark.parametrize("document", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        found = document.parent / path if path else document
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}, target


def test_troubleshooting_quotes_what_the_code_says() -> None:
    source = "\n".join(p.read_text() for folder in ("tasks", "flows") for p in sorted((ROOT / folder).rglob("*.py")))
    # A message that the source breaks over several literals is one.
    said = re.sub(r'"\s*\n\s*f?"', "", source)
    cells = [line.split(" | ")[0] for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines()]
    quoted = [piece for cell in cells if cell.startswith("| `") for piece in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 20
    parts = {part.strip() for quote in quoted for part in quote.split("…")}
    missing = {part for part in parts - {""} if part not in said}
    assert missing <= {"params.yaml has"}  # the file's name comes from a variable


def test_the_readme_s_own_data_example_is_accepted() -> None:
    """The block of the README over params.yaml, with the two changes that the text below it names."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    read = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    named = {"shared": {"format": "chat"}, "reward": {"origins": ["sampled", "file"]}}
    params = config.Params.model_validate(workspace.merge(workspace.merge(read, example), named))
    data, judge = params.corpus.data, Path(params.corpus.judge.model)
    assert not judge.is_relative_to(data), f"corpus.judge.model is looked up below corpus.data: {judge}"
