"""Picture of a built page: python tests/book/take_screenshot.py PAGE FILE.png [--dark] [--width N].

Uses a Chromium that is installed, without a network. README's picture comes from here:

    python tests/book/take_screenshot.py linear-distillation/how-fast book/assets/screenshot.png
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
]
DARK = """<script>document.documentElement.dataset.theme = "dark";
document.documentElement.dataset.mode = "dark"; localStorage.setItem("theme", "dark");
localStorage.setItem("mode", "dark");</script>"""


def take(page: Path, target: Path, width: int, height: int, dark: bool = False) -> None:
    """Write a picture of a page; a dark one through a copy of it that switches the theme."""
    browser = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if browser is None:
        raise SystemExit(f"no browser found; install one of {', '.join(PROGRAMS)}")
    shown = page
    if dark:
        shown = page.with_name(f"_dark_{page.name}")
        shown.write_text(page.read_text().replace("<head>", f"<head>{DARK}", 1))
    try:
        with tempfile.TemporaryDirectory() as profile:
            command = [browser, *QUIET, f"--user-data-dir={profile}"]
            command += ["--host-resolver-rules=MAP * ~NOTFOUND"]
            command += [f"--window-size={width},{height}", f"--screenshot={target.resolve()}"]
            subprocess.run([*command, shown.as_uri()], check=True, capture_output=True)
    finally:
        if dark:
            shown.unlink()


def main() -> None:
    """Read the command line and take one picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", help="page under _build/html, without suffix")
    parser.add_argument("file", type=Path)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=860)
    options = parser.parse_args()
    page = HTML / f"{options.page}.html"
    if not page.exists():
        sys.exit(f"{page} does not exist; run 'make book' first")
    take(page, options.file, options.width, options.height, options.dark)


if __name__ == "__main__":
    main()
