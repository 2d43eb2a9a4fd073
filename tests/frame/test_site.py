"""The documentation site builds strictly, holds what it should, and asks no other host for anything."""

from __future__ import annotations

import logging
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from dashboards import alerts
from scripts.site_sources import outside

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


class Loaded(HTMLParser):
    """Addresses that a browser fetches by itself, and where links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found[name] or "" for name in ("id", "name") if name in found}
        if tag in ("script", "img", "iframe", "source", "video") and found.get("src"):
            self.loads.append(found["src"] or "")
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "modulepreload"):
            self.loads.append(found.get("href") or "")
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")


def read(page: Path) -> Loaded:
    parser = Loaded()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_every_page_of_docs_is_on_the_site(site):
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("")
        place = path.parent if path.name in ("index", "README") else path
        assert (site / place / "index.html").exists(), page


def test_every_link_of_the_built_pages_leads_to_a_page_and_an_anchor_of_the_site(site):
    pages = {page: read(page) for page in site.rglob("index.html")}
    assert len(pages) > 80
    checked = 0
    for page, found in pages.items():
        for link in found.links:
            address, _, anchor = link.partition("#")
            if "://" in address or address.startswith("mailto:"):
                continue
            target = (page.parent / address).resolve() if address else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page.relative_to(site)}: {link}"
            if anchor and target in pages:
                assert anchor in pages[target].anchors, f"{page.relative_to(site)}: {link}"
            checked += 1
    assert checked > 5000


def test_nothing_is_fetched_from_another_host_when_a_page_is_read(site):
    for page in site.rglob("*.html"):
        found = read(page)
        assert found.loads, page
        assert [address for address in found.loads if re.match(r"(https?:)?//", address)] == [], page
        assert 'class="mermaid"' not in page.read_text()
    sheets = "".join(sheet.read_text() for sheet in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']+", sheets) == []


def test_an_alerts_link_leads_to_its_runbook(site):
    for alert in alerts.ALERTS:
        text = (site / "runbooks" / alert.name / "index.html").read_text()
        assert f'<h1 id="{alert.name.lower()}">{alert.name}' in text


def test_a_file_outside_of_docs_is_shown_as_it_is(site):
    page = (site / "sources/examples/smollm2-cpu.yaml/index.html").read_text()
    shown = re.sub(r"<[^>]+>", "", page)
    for line in (ROOT / "examples/smollm2-cpu.yaml").read_text().splitlines():
        assert line.strip() in shown.replace("&quot;", '"')
    folder = read(site / "sources/dashboards/grafana/index.html")
    assert any(link.endswith("octavo-service.json/") for link in folder.links)


def test_the_concepts_have_a_diagram_each_that_is_readable_on_a_dark_ground(site):
    for page in (ROOT / "docs" / "concepts").glob("*.md"):
        pictures = [item for item in read(site / "concepts" / page.stem / "index.html").loads if "concept-" in item]
        assert len(pictures) == 1, page
        text = (site / "images" / Path(pictures[0]).name).read_text()
        assert re.search(r"<rect width='\d+' height='\d+' rx='8' fill='#fdfcf8'/>", text)
        assert "<title>" in text


def test_a_link_out_of_the_repository_or_to_nothing_is_left_for_the_build_to_refuse():
    assert outside("how-to/x.md", "../../README.md") == "README.md"
    assert outside("how-to/x.md", "../scaling.md") is None
    assert outside("x.md", "../../etc/passwd") is None
    assert outside("x.md", "../examples/none.yaml") is None
    assert outside("x.md", "https://example.org/../README.md") is None


FAULTS = {
    "a link to nothing": ("index.md", "# A\n\n[b](gone.md)\n"),
    "a file that is not there": ("index.md", "# A\n\n[b](../examples/gone.yaml)\n"),
    "an anchor that is not there": ("index.md", "# A\n\n[b](index.md#gone)\n"),
    "a picture that is not there": ("index.md", "# A\n\n![b](images/gone.svg)\n"),
    "a page that is missing in the navigation": ("more.md", "# More\n"),
}


@pytest.mark.parametrize(("name", "text"), FAULTS.values(), ids=FAULTS)
def test_the_build_refuses(tmp_path, caplog, name, text):
    shutil.copytree(ROOT / "docs" / "images", tmp_path / "docs" / "images")
    shutil.copytree(ROOT / "docs" / "stylesheets", tmp_path / "docs" / "stylesheets")
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](index.md#a)\n")
    settings = load_settings()
    hooks = [str(ROOT / hook) for hook in settings["hooks"]]
    settings |= {"nav": [{"A": "index.md"}], "hooks": hooks}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    with caplog.at_level(logging.WARNING):
        build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site")))
        (tmp_path / "docs" / name).write_text(text)
        with pytest.raises(Abort):
            build(load_config(str(tmp_path / "mkdocs.yml"), site_dir=str(tmp_path / "site")))


def load_settings() -> dict[str, object]:
    """mkdocs.yml as it is."""
    settings: dict[str, object] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["strict"] is True
    return settings
