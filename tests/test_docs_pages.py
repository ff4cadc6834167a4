"""Links, images and site of the documentation."""

import importlib.util
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.servers.browser import chromium, needs_chromium

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
IMAGES = DOCS / "images"
PAGES = sorted([*DOCS.glob("*.md"), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])
READER = MarkdownIt("commonmark").enable("table")
MOST_BYTES = 1 << 20  # of all images together
FOREIGN = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""")


def tokens(page: Path) -> list[Token]:
    """Return the inline elements of a page."""
    blocks = READER.parse(page.read_text(encoding="utf-8"))
    return [token for block in blocks for token in block.children or ()]


def addresses(page: Path) -> list[str]:
    """Return the targets of links and images that are files of the repository."""
    targets = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in tokens(page)]
    return [target for target in targets if target and not re.match(r"\w+:", target)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site name them."""
    blocks = READER.parse(page.read_text(encoding="utf-8"))
    titles = [after.content for block, after in pairwise(blocks) if block.type == "heading_open"]
    shown = ["".join(token.content for token in READER.parseInline(title)[0].children or ()) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for address in addresses(page):
        name, _, anchor = unquote(address).partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(address)
    assert not broken


def test_every_image_is_shown_and_has_a_text() -> None:
    images = [(page, token) for page in PAGES for token in tokens(page) if token.type == "image"]
    assert len(images) > 5
    assert not [page.name for page, image in images if len(image.content) < 20]
    shown = {(page.parent / str(image.attrs["src"])).resolve() for page, image in images}
    drawn = {path for path in IMAGES.iterdir() if path.suffix in (".png", ".svg")}
    assert drawn == shown
    assert sum(path.stat().st_size for path in drawn) < MOST_BYTES


def test_every_page_is_in_the_index_and_the_site() -> None:
    names = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert names <= {address.partition("#")[0] for address in addresses(DOCS / "index.md")}
    assert names <= set(re.findall(r'"([\w-]+\.md)"', (DOCS / "site" / "zensical.toml").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not importlib.util.find_spec("zensical"):
        pytest.skip("the packages of requirements-docs.txt, which build the site, are not installed")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(DOCS / "site" / "build.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_has_every_page_and_asks_no_other_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {path.stem for path in DOCS.glob("*.md")} | {"CONTRIBUTING", "CHANGELOG"} <= {path.stem for path in pages}
    assert {path.name for path in IMAGES.glob("*.png")} <= {path.name for path in (site / "images").iterdir()}
    foreign = [(page.name, text) for page in pages for text in FOREIGN.findall(page.read_text(encoding="utf-8"))]
    assert foreign == []
    assert not [path for path in site.rglob("*.css") if re.search(r"url\([\"']?https?:", path.read_text())]


SEARCH = """
const until = async find => {
    while (!find()) await new Promise(done => setTimeout(done, 50));
    return find();
};
document.querySelector(".md-search__button").click();
const inputOf = each => each.shadowRoot?.querySelector("input");
const box = await until(() => [...document.querySelectorAll("*")].find(inputOf));
const input = box.shadowRoot.querySelector("input");
input.value = "quarantine";
input.dispatchEvent(new Event("input", { bubbles: true }));
await until(() => / results/.test(box.shadowRoot.textContent));
return performance.getEntriesByType("resource").map(each => each.name).filter(name => !name.startsWith("file:"));
"""


@pytest.mark.system
@needs_chromium
def test_search_works_in_pages_opened_from_the_folder(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path, {}) as browser:
        browser.open((site / "gate.html").as_uri())
        assert browser.run(SEARCH) == []  # addresses of other hosts
        for width in (390, 1300):
            for dark in (False, True):
                browser.resize(width, 900, dark=dark)
                assert browser.run("return document.documentElement.scrollWidth") <= width
