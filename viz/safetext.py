"""Text that other people or a model wrote, made inert for the chat's Markdown renderer.

`literal` shows a prompt exactly as typed. `markdown` lets an answer keep its Markdown (lists, bold, code, formulas) but
no HTML tag, entity or picture of it takes effect. The chat sanitises HTML as well, and the page's content policy
forbids foreign requests: this is the first of three fences, and the one that keeps the text visible as written.
"""

from __future__ import annotations

import re

_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_FENCE = re.compile(r"^(?:[ \t>]|[-*+] |\d+[.)] )*(`{3,}|~{3,})(.*)$")
_TICKS = re.compile(r"`+")
_ENTITY = re.compile(r"&(?=#?\w+;)")


def literal(text: str) -> str:
    """Markdown source that renders as `text`, indentation kept. Every ASCII mark becomes an entity: those never start
    anything in Markdown, and unlike backslashes they are not mistaken for the delimiters of a formula."""
    lines = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        body = line.lstrip(" \t")
        indent = line[: len(line) - len(body)].expandtabs(4)
        lines.append("\N{NO-BREAK SPACE}" * len(indent) + _PUNCTUATION.sub(lambda mark: f"&#{ord(mark[0])};", body))
    return "\n".join(lines)


def markdown(text: str) -> str:
    """`text` with `<`, entities and pictures defused outside code, where Markdown would act on them. Works on every
    prefix of a streamed answer."""
    out: list[str] = []
    prose: list[str] = []
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            out.append(line)
            closes = mark and mark[1][0] == fence[0] and len(mark[1]) >= len(fence) and not mark[2].strip()
            fence = "" if closes else fence
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            out += _prose(prose)
            prose, fence = [], mark[1]
            out.append(line[: mark.end(1)] + _defuse(mark[2]))
        elif not line.strip():  # a blank line ends a paragraph, and with it any open code span
            out += _prose(prose) + [line]
            prose = []
        else:
            prose.append(line)
    return "\n".join(out + _prose(prose))


def _prose(lines: list[str]) -> list[str]:
    """A paragraph: code spans kept, everything else defused."""
    if not lines:
        return []
    text = "\n".join(lines)
    out, at = [], 0
    while opening := _TICKS.search(text, at):
        closing = next((m for m in _TICKS.finditer(text, opening.end()) if len(m[0]) == len(opening[0])), None)
        end = closing.end() if closing else opening.end()
        out += [_defuse(text[at : opening.start()]), text[opening.start() : end]]
        at = end
    return ["".join(out) + _defuse(text[at:])]


def _defuse(text: str) -> str:
    return _ENTITY.sub("&amp;", text).replace("<", "&lt;").replace("![", "!&#91;")
