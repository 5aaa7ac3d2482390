"""What an encoding can carry, told before lines are broken: an ASCII twin may be wider than its glyph."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from whyformer.report.terminal import ENCODING_ERRORS, Picture


def carried(part: RenderableType, encoding: str) -> RenderableType:
    """The same with twins for what the encoding cannot carry; what holds other parts is changed in place."""
    if isinstance(part, str):
        return part.encode(encoding, ENCODING_ERRORS).decode(encoding)
    if isinstance(part, Text):
        return _text(part, encoding)
    if isinstance(part, Padding):
        part.renderable = carried(part.renderable, encoding)
    elif isinstance(part, Group):
        return Group(*(carried(each, encoding) for each in part.renderables))
    elif isinstance(part, Picture):
        return Picture(_text(part.drawing, encoding))
    elif isinstance(part, Rule):
        part.title = _text(part.title, encoding) if isinstance(part.title, Text) else part.title
        part.characters = str(carried(part.characters, encoding))
    elif isinstance(part, Table):
        for column in part.columns:
            column.header = carried(column.header, encoding)
            column._cells = [carried(cell, encoding) for cell in column._cells]
    return part


def _text(text: Text, encoding: str) -> Text:
    """A text with its styles: each stretch of one style is translated by itself."""
    borders = sorted({at for span in text.spans for at in (span.start, span.end)} - {0, len(text)})
    twin = Text(style=text.style, justify=text.justify, overflow=text.overflow, no_wrap=text.no_wrap)
    for stretch in text.divide(borders):
        plain = str(carried(stretch.plain, encoding))
        twin.append_text(
            Text(plain, spans=[span._replace(start=0, end=len(plain)) for span in stretch.spans])
        )
    return twin
