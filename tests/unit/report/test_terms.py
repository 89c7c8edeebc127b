"""The words of the page: defined in one document, and nowhere else."""

from scalebench.report import render_page
from scalebench.report.words import terms
from tests.builders.summaries import make_summary


def test_every_word_is_defined_by_the_document_briefly():
    document = terms.plain(terms.CHECKED_OUT.read_text("utf-8"))
    assert set(terms.definitions()) == set(terms.WORDS)
    for word, meaning in terms.definitions().items():
        assert meaning in document, word
        assert 15 < len(meaning) <= terms.LONG, word


def test_without_the_document_the_page_has_no_definitions(monkeypatch, tmp_path):
    monkeypatch.setattr(terms, "INSTALLED", tmp_path / "none.md")
    monkeypatch.setattr(terms, "CHECKED_OUT", tmp_path / "none.md")
    terms.definitions.cache_clear()
    try:
        assert 'class="term"' not in render_page([make_summary()])
    finally:
        terms.definitions.cache_clear()
