from pathlib import Path

from scheduler.grammar.schema.keywords import KEYWORDS
from scheduler.grammar.schema.strings import ANNOTATION_FORMATS, FORMATS

PAGE = Path(__file__).parents[3] / "docs" / "structured-output.md"


def test_the_page_shows_the_table_of_keywords_as_it_is() -> None:
    page = PAGE.read_text()
    shown = [line for line in page.split("| Keyword |")[1].splitlines()[2:] if line.startswith("|")]
    assert shown == [f"| `{name}` | {treatment} | {note} |" for name, (treatment, note) in KEYWORDS.items()]


def test_the_page_names_every_format() -> None:
    formats = PAGE.read_text().split("Formats: ")[1]
    assert all(f"`{name}`" in formats for name in (*FORMATS, *ANNOTATION_FORMATS))
