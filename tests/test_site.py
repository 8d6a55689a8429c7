"""The documentation as a site: it builds without a warning, and needs nothing from the internet."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

# What a browser fetches by itself; a link that a reader may click is not.
FETCHED = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="?https?:|<link\b(?![^>]*canonical)[^>]*href="?https?:'
)

needs_mkdocs = pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("material") and find_spec("mkdocstrings")),
    reason="needs mkdocs-material and mkdocstrings, the extra `docs`",
)


def build(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does; --quiet would hide warnings from --strict, too."""
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
    ]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of what comes after mkdocs
    return subprocess.run(
        [*command, "-f", str(folder / "mkdocs.yml"), "-d", str(out)],
        capture_output=True, text=True, env=quiet, check=False,
    )  # fmt: skip


@needs_mkdocs
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path / "site")
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page.name
    reference = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    assert "Run an experiment in a new directory and return it" in reference


@needs_mkdocs
@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[gone](gone.md)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert "gone.md" in built.stdout + built.stderr


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"[\w./-]+\.md", navigation)
    assert sorted(named) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in PAGES)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files_that_are_there(page: Path) -> None:
    """And, within the documentation, to files that the site has."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not link.startswith(("http:", "https:", "mailto:")):
            target = (page.parent / link).resolve()
            assert target.exists(), link
            assert page.name == "README.md" or target.is_relative_to(ROOT / "docs"), link
