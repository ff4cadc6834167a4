"""The page of `ratchet trace`: the chain from data to versions as a tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.provenance.lineage import Link
from ratchet.reports.templating import render_html

__all__ = ["render"]


@dataclass(frozen=True)
class Node:
    """A link of the chain with those that follow from it."""

    title: str
    lines: Sequence[str]
    children: Sequence["Node"]


def render(name: str, summary: Sequence[str], chains: Sequence[Link]) -> str:
    """Return the page for `name`, which `summary` describes; the same content gives the same text."""
    return render_html("trace.html.j2", name=name, summary=summary, chains=[_node(chain) for chain in chains])


def _node(link: Link) -> Node:
    return Node(link.title, link.lines, [_node(child) for child in link.children])
