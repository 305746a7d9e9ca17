"""Checks of a built site, page by page. Each returns what is wrong as a list of sentences."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from bs4 import BeautifulSoup

from book.extensions.paper_numbers import EQUATION_LABEL, RESULT_LABEL, paper_number

LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
}
NOT_LOADED = {"canonical", "alternate", "next", "prev", "search", "author", "license", "index"}
NOT_PAGES = {"genindex.html", "search.html", "404.html", "py-modindex.html", "prf-prf.html"}
COLAB = "https://colab.research.google.com/github/what-the-student-learns/what-the-student-learns/"


@dataclass(frozen=True)
class Page:
    """A built page: its name without suffix, and its parsed HTML."""

    name: str
    path: Path
    html: BeautifulSoup

    @property
    def article(self):
        return self.html.select_one("article.bd-article") or self.html


def read_pages(site: Path) -> list[Page]:
    """Every page that a reader sees; the theme's search and index pages are left out."""
    found = []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        if not name.startswith(("_static", "_sources")) and name not in NOT_PAGES:
            html = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
            found.append(Page(name.removesuffix(".html"), path, html))
    return found


def is_outside(address: str) -> bool:
    return address.startswith("//") or urlparse(address).scheme in {"http", "https"}


def outside_requests(page: Page) -> list[str]:
    """Things that a browser would fetch from another host when the page opens."""
    found = []
    for tag, attribute in LOADING.items():
        for node in page.html.find_all(tag):
            loaded = not NOT_LOADED & set(node.get("rel", []))
            if loaded and is_outside(node.get(attribute, "")):
                found.append(f"{page.name}: <{tag}> loads {node[attribute]}")
    for script in page.html.find_all("script", src=False):
        if re.search(r"""(import\(|\.src\s*=|fetch\()\s*["'`](https?:)?//""", script.text):
            found.append(f"{page.name}: an inline script loads from outside")
    return found


def outside_styles(site: Path) -> list[str]:
    """Addresses of other hosts in style sheets."""
    pattern = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")
    found = []
    for path in sorted(site.rglob("*.css")):
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.name}: {address}" for address in pattern.findall(text)]
    return found


def mathjax_problems(page: Page) -> list[str]:
    """A page with formulas loads the site's own MathJax, and the file is there."""
    if not page.article.select(".math"):
        return []
    scripts = [s["src"] for s in page.html.find_all("script", src=True) if "mathjax" in s["src"]]
    if not scripts:
        return [f"{page.name}: formulas, but no MathJax"]
    files = [page.path.parent / unquote(urlparse(source).path) for source in scripts]
    return [f"{page.name}: {file} is missing" for file in files if not file.exists()]


def launch_problems(page: Page, committed: set[str], book: str = "book") -> list[str]:
    """The Colab button of a notebook opens that very notebook, and other pages have none."""
    links = {a["href"] for a in page.html.find_all("a", href=True) if a["href"].startswith(COLAB)}
    notebook = f"{book}/{page.name}.ipynb"
    expected = {f"{COLAB}blob/main/{notebook}"} if notebook in committed else set()
    if links != expected:
        return [f"{page.name}: Colab buttons {sorted(links)}, expected {sorted(expected)}"]
    return []


def picture_problems(page: Page) -> list[str]:
    """Every picture has words for those who do not see it, every figure has a caption."""
    found = []
    for image in page.article.find_all("img"):
        if len(image.get("alt", "").strip()) < 10 and image.get("role") != "presentation":
            found.append(f"{page.name}: {image.get('src')} has alt {image.get('alt')!r}")
    for svg in page.article.find_all("svg"):
        named = svg.get("aria-label") or svg.get("aria-labelledby") or svg.get("aria-hidden")
        if not (named or "sd-octicon" in " ".join(svg.get("class", []))):
            found.append(f"{page.name}: an <svg> has no name")
    for figure in page.article.find_all("figure"):
        caption = figure.find("figcaption")
        if caption is None or not caption.text.strip():
            found.append(f"{page.name}: figure {figure.get('id')} has no caption")
    return found


def number_problems(page: Page) -> list[str]:
    """Results and equations of a source carry the source's number."""
    found = []
    for box in page.article.select("div.proof.admonition[id]"):
        match = RESULT_LABEL.match(box["id"])
        shown = box.select_one(".caption-number").text.strip()
        kind = next(name for name in box["class"] if name not in {"proof", "admonition"})
        expected = f"{kind.title()} {paper_number(match)}" if match else kind.title()
        if shown != expected:
            found.append(f"{page.name}: {box['id']} reads {shown!r}, expected {expected!r}")
    for equation in page.article.select("div.math[id]"):
        match = EQUATION_LABEL.match(equation["id"])
        shown = equation.select_one(".eqno").text.strip("()\u00b6# \n")
        if match and shown != paper_number(match):
            found.append(f"{page.name}: {equation['id']} reads ({shown})")
    return found


def form_problems(page: Page) -> list[str]:
    """One <h1>, no heading level left out, no id twice."""
    found = []
    levels = [int(h.name[1]) for h in page.article.find_all(re.compile(r"^h[1-6]$"))]
    if levels.count(1) != 1:
        found.append(f"{page.name}: {levels.count(1)} <h1> headings")
    jumps = [b for a, b in itertools.pairwise(levels) if b > a + 1]
    if jumps:
        found.append(f"{page.name}: a heading level is left out before <h{jumps[0]}>")
    ids = [node["id"] for node in page.article.find_all(id=True)]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    return found + [f"{page.name}: id {name} stands more than once" for name in twice]


def title_problems(pages: list[Page]) -> list[str]:
    """No two pages have the same <title>."""
    by_title: dict[str, list[str]] = {}
    for page in pages:
        by_title.setdefault(page.html.title.text.strip(), []).append(page.name)
    return [f"{names} share the title {t!r}" for t, names in by_title.items() if len(names) > 1]
