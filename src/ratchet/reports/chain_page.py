"""The chain as one offline page: what was asked for first, then each link inside the one it was made of."""

from collections.abc import Sequence

from ratchet.provenance.lineage import Link
from ratchet.reports.page import document, section, text

__all__ = ["render"]


def render(name: str, words: Sequence[str], chains: Sequence[Link]) -> str:
    """The page for what `name` names; `words` say what that is. The same content gives the same text."""
    told = "".join(f'<p class="words">{text(one)}</p>' for one in words)
    header = f'<header class="verdict"><p class="over">Where it came from, and what was made of it</p>{told}</header>'
    drawn = [section("", f'<ul class="chain">{_drawn(chain)}</ul>') for chain in chains]
    return document(f"Trace of {name}", [header, *drawn])


def _drawn(link: Link) -> str:
    lines = "".join(f"<p>{text(line)}</p>" for line in link.lines)
    below = f"<ul>{''.join(map(_drawn, link.children))}</ul>" if link.children else ""
    return f"<li><h3>{text(link.title)}</h3>{lines}{below}</li>"
