"""The command line: exit codes, and errors in one line."""

from __future__ import annotations

import pytest

from lib.book.__main__ import main


def test_bad_input_gives_two_and_a_sentence(book, capsys):
    book.notebook("part/sum", "1", parameters=None)
    assert main(["run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: book/part/sum.ipynb has 0 cells")
    assert "Traceback" not in error


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--profile", "fast"]])
def test_unknown_words_give_two(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_failed_chapter_gives_one_and_success_nothing(book, capsys, monkeypatch):
    monkeypatch.setattr("lib.book.runner.run", lambda *arguments: ["part/sum"])
    assert main(["run"]) == 1
    assert "failed: part/sum" in capsys.readouterr().err
    monkeypatch.setattr("lib.book.runner.run", lambda *arguments: [])
    assert main(["run"]) == 0


def test_an_interruption_gives_130(book, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("lib.book.runner.run", interrupt)
    assert main(["run"]) == 130
    assert "run again to go on" in capsys.readouterr().err


def test_the_command_line_is_light(book):
    import subprocess
    import sys

    code = "import sys, lib.book.__main__ as m; m.main(['scorecard']); "
    code += "print([n for n in ('torch', 'numpy', 'matplotlib', 'nbformat') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
