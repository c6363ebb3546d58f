"""How the text of a property becomes words for search: what `@index(text: …)` may say."""

from typing import Final

PLAIN: Final = "plain"
"""The words as they are written, in lower case. What a property without the annotation has."""
FOLDED: Final = "folded"
"""Words without regard to case, accents and the forms of letters: İzmir is izmir, Straße is strasse."""
LANGUAGES: Final = (
    "arabic",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hungarian",
    "italian",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "spanish",
    "swedish",
    "tamil",
    "turkish",
)
"""Words of a language by their stems, without accents and without its most common words."""
TEXT_ANALYSES: Final = (PLAIN, FOLDED, *LANGUAGES)


def is_indexable(analysis: str) -> bool:
    """Whether the table format can make the same words of a text; a search by folded words has no index."""
    return analysis != FOLDED
