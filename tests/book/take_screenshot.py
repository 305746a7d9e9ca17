"""Picture of a built page: python tests/book/take_screenshot.py PAGE FILE.png [--top N] [--dark].

Uses a Chromium that is installed, without a network. README's picture is made with it:

    python tests/book/take_screenshot.py linear-distillation/how-fast book/assets/screenshot.png \\
        --width 920 --top 2490 --height 1535
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HTML = Path(__file__).resolve().parents[2] / "_build" / "html"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=8000",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]
DARK = """<script>document.documentElement.dataset.theme = "dark";
document.documentElement.dataset.mode = "dark"; localStorage.setItem("theme", "dark");
localStorage.setItem("mode", "dark");</script>"""


def take(page: Path, target: Path, width: int, height: int) -> None:
    """Write a picture of the upper part of a page."""
    browser = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if browser is None:
        raise SystemExit(f"no browser found; install one of {', '.join(PROGRAMS)}")
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *QUIET, f"--user-data-dir={profile}"]
        command += [f"--window-size={width},{height}", f"--screenshot={target.resolve()}"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)


def take_dark(page: Path, target: Path, width: int, height: int) -> None:
    """The same in dark mode, through a copy of the page that switches the theme."""
    copy = page.with_name(f"_dark_{page.name}")
    copy.write_text(page.read_text().replace("<head>", f"<head>{DARK}", 1))
    try:
        take(copy, target, width, height)
    finally:
        copy.unlink()


def main() -> None:
    """Read the command line and take one picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", help="page under _build/html, without suffix")
    parser.add_argument("file", type=Path)
    parser.add_argument("--top", type=int, default=0, help="pixels to leave out at the top")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=860)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    page = HTML / f"{options.page}.html"
    if not page.exists():
        sys.exit(f"{page} does not exist; run 'make book' first")
    bottom = options.top + options.height
    (take_dark if options.dark else take)(page, options.file, options.width, bottom)
    with Image.open(options.file) as picture:
        part = picture.convert("RGB").crop((0, options.top, options.width, bottom))
    part.quantize(256, dither=Image.Dither.NONE).save(options.file, optimize=True)


if __name__ == "__main__":
    main()
