"""The claims files: the book's own are valid, and each kind of mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lib.book.claim_files import find_claim, load_sources
from tests.book.conftest import CODE

GOOD = {
    "source": "toy",
    "title": "A toy",
    "citation": "toy2020",
    "claims": [
        {
            "id": "toy.one",
            "kind": "theorem",
            "label": "Theorem 1",
            "section": "1",
            "chapter": "part/sum",
            "says": "One is one.",
            "paper": None,
            "checks": [{"name": "gap", "rule": "below", "bound": 1e-3, "meaning": "a gap"}],
        }
    ],
}


def write(root: Path, content: object, name: str = "toy") -> None:
    path = root / "data" / "claims" / f"{name}.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))


def changed(claim: dict | None = None, check: dict | None = None, drop: str = "") -> dict:
    first = GOOD["claims"][0] | (claim or {})
    first["checks"] = (
        first["checks"]
        if claim and "checks" in claim
        else [GOOD["claims"][0]["checks"][0] | (check or {})]
    )
    where = first["checks"][0] if isinstance(first["checks"], list) and first["checks"] else {}
    where.pop(drop, None)
    first.pop(drop, None)
    return GOOD | {"claims": [first]}


def test_the_claims_of_the_book_are_valid_and_cite_the_bibliography():
    sources = load_sources(CODE)
    assert sources
    bibliography = (CODE / "book" / "references.bib").read_text()
    for source in sources:
        assert f"{{{source.citation}," in bibliography


def test_a_good_file_gives_its_claims(tmp_path):
    write(tmp_path, GOOD)
    claim = find_claim(tmp_path, "toy.one")
    assert (claim.expect, claim.paper, claim.checks[0].bound) == ("reproduced", None, 1e-3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (changed({"id": "Toy One"}), "id: saw 'Toy One'; allowed: lower-case"),
        (changed({"kind": "guess"}), "kind: saw 'guess'; allowed: theorem, lemma"),
        (changed({"section": 3}), "section: saw 3; it must be text"),
        (changed({"says": " "}), "says: saw ' '; it must be text"),
        (changed({"paper": [1]}), r"paper is \[1\]"),
        (changed({"mood": "good"}), "'mood' is not allowed here; allowed: id, kind"),
        (changed({"expect": "maybe"}), "expect: saw 'maybe'"),
        (changed({"expect": "trend only"}), "why .required when expect is 'trend only'."),
        (changed({"checks": []}), "checks must be a list with at least one check"),
        (changed(drop="says"), "'says' is missing"),
        (changed(drop="meaning"), "check 'gap': 'meaning' is missing"),
        (changed(drop="bound"), "check 'gap': 'bound' is missing"),
        (changed(check={"rule": "about"}), "rule: saw 'about'; allowed: at-most"),
        (changed(check={"bound": "x"}), "bound: saw 'x'; it must be a finite number"),
        (changed(check={"bound": True}), "bound: saw True; it must be a finite number"),
        (changed(check={"bound": float("nan")}), "bound: saw nan"),
        (changed(check={"rule": "between"}), r"'between' needs \[low, high\]"),
        (changed(check={"rule": "between", "bound": [2, 1]}), "low must not be above high"),
        (changed(check={"rule": "holds"}), "'bound' is not allowed here"),
        (changed(check={"rule": "within"}), "'target' is missing"),
        (changed(check={"trend": "yes"}), "trend is 'yes'; it must be true or false"),
        (GOOD | {"source": "other"}, "source is 'other'"),
        (GOOD | {"claims": GOOD["claims"] * 2}, "'toy.one' stands there twice"),
        ("source: toy\nsource: toy", "the key 'source' stands there twice"),
        ("claims: [", "toy.yml"),
        ("", "must be a mapping"),
    ],
)
def test_each_mistake_is_named_with_its_file(tmp_path, content, reason):
    write(tmp_path, content)
    with pytest.raises(ValueError, match=reason) as caught:
        load_sources(tmp_path)
    assert str(caught.value).startswith("data/claims/toy.yml")
    if "claim 'toy.one'" not in str(caught.value):
        assert any(word in reason for word in ("Toy One", "source", "twice", "toy.yml", "mapping"))


def test_the_same_id_in_two_sources_is_refused(tmp_path):
    write(tmp_path, GOOD)
    write(tmp_path, GOOD | {"source": "yet"}, "yet")
    with pytest.raises(ValueError, match=r"yet\.yml: claim 'toy.one' stands in data/claims/toy"):
        load_sources(tmp_path)


def test_an_unknown_claim_names_its_neighbours(tmp_path):
    write(tmp_path, GOOD)
    with pytest.raises(ValueError, match=r"'toy.uno' stands in no file.*nearest: toy.one"):
        find_claim(tmp_path, "toy.uno")
