"""The architecture page names only modules that exist, and every room."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
ROOMS = sorted(
    path.name for path in (ROOT / "src" / "omnigraph").iterdir() if (path / "__init__.py").is_file()
)


def test_every_room_is_explained() -> None:
    table = PAGE.split("## The rooms", 1)[1].split("##", 1)[0]
    assert [room for room in ROOMS if f"`{room}`" not in table] == []


def test_every_module_the_page_names_exists() -> None:
    named = set(re.findall(rf"\b({'|'.join(ROOMS)})/(\w+)", PAGE))
    missing = [
        f"{room}/{module}"
        for room, module in sorted(named)
        if not (ROOT / "src" / "omnigraph" / room / f"{module}.py").is_file()
        and not (ROOT / "src" / "omnigraph" / room / module).is_dir()
    ]
    assert len(named) > 15
    assert missing == []
