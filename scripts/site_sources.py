"""Hooks of the documentation site: folders in the navigation, and pages for what is linked outside of docs/.

An entry of the navigation that ends in a slash stands for the pages of that folder, the index first, then by name.

In the repository such a link (`../../examples/smollm2-cpu.yaml`) is right as it stands. The site has no repository to
point to, and may be read where there is no network: so each linked file is shown on the site as it was when it was
built, under sources/, and each linked folder as a list of its files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "sources"
INDEXES = ("index", "README")
LINK = re.compile(r"(\]\()([^()\s#]+)((?:#[^()\s]*)?\))")
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
LANGUAGES = {
    ".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".md": "markdown",
    ".sh": "bash", ".tpl": "yaml",
}  # fmt: skip
HEAD = "---\nsearch:\n  exclude: true\n---\n\n"


def outside(page: str, link: str) -> str | None:
    """The path in the repository of a link that leaves docs/, or None; `page` is the page's path below docs/."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if path == "docs" or path.startswith(("docs/", "../")):
        return None
    return path if (ROOT / path).exists() else None


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines outside of fenced blocks."""
    fence = ""
    for number, line in enumerate(text.splitlines()):
        found = FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and line.strip() == fence:
            fence = ""
        elif not fence:
            yield number, line


def address(path: str) -> str:
    """Where a file or folder of the repository lies on the site, as a path of a page's source."""
    return f"{FOLDER}/{path}/index.md" if (ROOT / path).is_dir() else f"{FOLDER}/{path}.md"


def shown(path: str) -> str:
    """The page of a file: its text as it is, in a fence that nothing inside of it can end."""
    text = (ROOT / path).read_text(encoding="utf-8")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"{HEAD}# {path}\n\n{fence} {language}\n{text.rstrip()}\n{fence}\n"


def listed(folder: str) -> str:
    """The page of a folder: its files, each with a page of its own."""
    names = "\n".join(f"- [{Path(path).name}]({Path(path).name}.md)" for path in files_of(folder))
    return f"{HEAD}# {folder}/\n\n{names}\n"


def files_of(folder: str) -> list[str]:
    """Text files right in a folder."""
    kept = (item for item in sorted((ROOT / folder).iterdir()) if item.is_file() and not item.name.startswith("."))
    return [str(item.relative_to(ROOT)) for item in kept if item.suffix in {*LANGUAGES, ".in", ""}]


def linked(pages: Files) -> list[str]:
    """Files and folders of the repository that pages link to, with the files of those folders."""
    found: dict[str, None] = {}
    for page in pages.documentation_pages():
        for _, line in prose(page.content_string):
            for _, link, _ in LINK.findall(line):
                path = outside(page.src_uri, link)
                if path is not None:
                    found.setdefault(path)
                    for inner in files_of(path) if (ROOT / path).is_dir() else ():
                        found.setdefault(inner)
    return list(found)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of a folder in place of its name in the navigation."""
    docs = Path(config.docs_dir)
    for section in config.nav or ():
        for title, entry in section.items() if isinstance(section, dict) else ():
            if isinstance(entry, str) and entry.endswith("/"):
                pages = sorted((docs / entry).glob("*.md"), key=lambda page: (page.stem not in INDEXES, page.name))
                section[title] = [str(page.relative_to(docs)) for page in pages]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages of what is linked."""
    for path in linked(files):
        content = listed(path) if (ROOT / path).is_dir() else shown(path)
        files.append(File.generated(config, address(path), content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that leave docs/ to those pages; what leads nowhere is left for the strict build to refuse."""
    here = page.file.src_uri
    if here.startswith("migration/"):
        page.meta["hide"] = ["toc"]  # room for two manifests side by side
    lines = markdown.splitlines()

    def turned(found: re.Match[str]) -> str:
        path = outside(here, found[2])
        if path is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(address(path), posixpath.dirname(here) or '.')})"

    if not here.startswith(f"{FOLDER}/"):
        for number, line in prose(markdown):
            lines[number] = LINK.sub(turned, line)
    return "\n".join(lines)
