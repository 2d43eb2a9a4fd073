"""The documents lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)#\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_to_a_file_leads_to_one(page):
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_folder_of_the_structure_page_exists():
    folders = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "structure.md").read_text(), re.MULTILINE)
    assert len(folders) > 20
    assert [folder for folder in folders if not (ROOT / folder).exists()] == []


def test_every_verb_that_the_documents_name_exists():
    verbs = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for verb in re.findall(r"`make ([a-z0-9-]+)", page.read_text()):
            assert verb in verbs, f"{page.name} names 'make {verb}'"


def test_no_file_of_the_checkout_names_a_home_folder():
    pattern = "/" + "root/|/" + "home/[a-z]"
    command = ["git", "-C", str(ROOT), "grep", "-nIE", pattern, "--", ".", ":!tests", ":!requirements"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip("not a git checkout")
    assert done.stdout == ""
