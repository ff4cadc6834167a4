"""Build the documentation as a site of static pages: `make site`. Needs the packages of requirements-docs.txt."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")  # the path of a link to another file
# Of the generator's pages: a script of another host, by which search works in pages that are files.
FOREIGN_SCRIPT = "https://unpkg.com/iframe-worker/shim"
OWN_SCRIPT = "file-worker.js"
GENERATOR = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]


def published(path: Path) -> Path:
    """Return where the site has a file of the repository: pages of docs/ are at the top, as is CONTRIBUTING.md."""
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else REPOSITORY)


def stage(folder: Path) -> None:
    """Copy the pages, and what they link to, into `folder`. Links follow the files; broken ones stay as they are."""
    shutil.copy(DOCS / "site" / "zensical.toml", folder)
    waiting, copied = sorted(DOCS.glob("*.md")), set()
    while waiting:
        path = waiting.pop()
        if path in copied:
            continue
        copied.add(path)
        copy = folder / "pages" / published(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text, linked = moved(path)
            copy.write_text(text, encoding="utf-8")
            waiting += linked
        else:
            shutil.copy(path, copy)


def moved(page: Path) -> tuple[str, list[Path]]:
    """Return the text of a page for its folder in the site, and the files that it links to."""
    files = []

    def link(match: re.Match[str]) -> str:
        target = (page.parent / match[0]).resolve()
        if not target.is_file():
            return match[0]
        files.append(target)
        return Path(os.path.relpath(published(target), published(page).parent)).as_posix()

    return LINK.sub(link, page.read_text(encoding="utf-8")), files


def replace_foreign_script(site: Path) -> None:
    """Let every page load our script instead: the site works offline, and its readers ask no other host."""
    shutil.copy(DOCS / "site" / OWN_SCRIPT, site)
    for page in site.rglob("*.html"):
        own = "../" * (len(page.relative_to(site).parts) - 1) + OWN_SCRIPT
        page.write_text(page.read_text(encoding="utf-8").replace(FOREIGN_SCRIPT, own), encoding="utf-8")


def build(target: Path) -> None:
    """Write the site into the folder `target`, which is replaced. A broken link or anchor is an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        stage(folder)
        done = subprocess.run(GENERATOR, cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:  # the generator ends with a traceback after its messages
            sys.exit(f"{done.stderr.partition('Traceback')[0]}the site was not built, see above")
        replace_foreign_script(folder / "site")
        shutil.rmtree(target, ignore_errors=True)
        (folder / "site").rename(target)


def main() -> None:
    """Build the site and print its address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY / "dist" / "site")
    target = parser.parse_args().folder.resolve()
    build(target)
    print(f"open {(target / 'index.html').as_uri()}")


if __name__ == "__main__":
    main()
