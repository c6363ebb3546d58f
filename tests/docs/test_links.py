"""Links between pages lead somewhere, and every page can be found from the index."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#\s]+)")


def targets(page: Path) -> list[Path]:
    return [(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))]


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in PAGES
        for target in targets(page)
        if not target.exists()
    ]
    assert broken == []


def test_the_index_names_every_page() -> None:
    named = set(targets(ROOT / "docs" / "index.md"))
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md"}
    assert pages - named == set()
