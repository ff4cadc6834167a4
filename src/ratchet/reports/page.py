"""The pieces a report page is made of: escaped HTML, and the one style sheet. No script, no address, nothing loaded."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

__all__ = [
    "Cell",
    "bars",
    "code",
    "document",
    "figure",
    "folded",
    "pairs",
    "points",
    "section",
    "table",
    "text",
]


class Cell(str):
    """HTML that is ready to stand on the page; any other string is escaped first."""


def text(value: object) -> str:
    """`value` as HTML: escaped, unless it is a `Cell`. None shows as a dash."""
    if isinstance(value, Cell):
        return str(value)
    if value is None:
        return '<span class="none">&ndash;</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape(str(value), quote=True)


def document(title: str, parts: Iterable[str]) -> str:
    """The whole page. Its policy forbids the browser to load anything from anywhere."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
            "style-src 'unsafe-inline'\">",
            f"<title>{text(title)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body><main>",
            *parts,
            "</main></body>",
            "</html>",
            "",
        ]
    )


def section(title: str, *parts: str, note: str = "") -> str:
    """One section under its heading, if it has one; empty parts are left out, and so is a section of nothing else."""
    filled = [part for part in parts if part]
    if not filled:
        return ""
    remark = f'<p class="note">{text(note)}</p>' if note else ""
    heading = f"<h2>{text(title)}</h2>" if title else ""
    return f"<section>{heading}{remark}{''.join(filled)}</section>"


def figure(title: str, drawing: str, caption: str = "") -> str:
    """A drawing with its name above and a line below; `drawing` and `caption` are HTML."""
    below = f"<p>{caption}</p>" if caption else ""
    return f"<figure><figcaption><h3>{text(title)}</h3></figcaption>{drawing}{below}</figure>"


def table(header: Sequence[object], rows: Iterable[Sequence[object]], *, kind: str = "") -> str:
    """A table that scrolls sideways by itself where the screen is too narrow; the first column names the row."""
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr><th scope="row">{text(first)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        if body
        else ""
    )


def pairs(content: Mapping[str, object]) -> str:
    """Names and values, one beside the other."""
    lines = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in content.items())
    return f'<dl class="pairs">{lines}</dl>' if lines else ""


def bars(content: Mapping[str, float]) -> str:
    """Names with bars as long as their numbers."""
    longest = max(content.values(), default=0) or 1
    lines = "".join(
        f'<div><dt>{text(name)}</dt><dd><i style="width:{max(0.0, 100 * value / longest):.1f}%"></i></dd>'
        f"<dd>{text(value)}</dd></div>"
        for name, value in content.items()
    )
    return f'<dl class="bars">{lines}</dl>' if lines else ""


def folded(summary: str, content: str) -> str:
    """Content behind a line that opens it."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>" if content else ""


def points(lines: Iterable[object]) -> str:
    """Sentences, one below the other."""
    listed = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="points">{listed}</ul>' if listed else ""


def code(content: str) -> str:
    """Lines to copy; one that is too long for the screen scrolls sideways."""
    return f'<pre class="scroll"><code>{text(content)}</code></pre>'


_STYLE = """
:root{--paper:#faf8f4;--card:#fffefb;--ink:#22252a;--soft:#696c72;--line:#e5e0d6;--good:#11705e;--bad:#b23c26;
--one:#11705e;--two:#c07a1c;--three:#3a6fb8;--four:#a63d7a;--five:#767b84;
--serif:"Iowan Old Style","Palatino Linotype",Palatino,"Book Antiqua",Georgia,serif;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (prefers-color-scheme:dark){:root{--paper:#16181b;--card:#1d2024;--ink:#e9e6df;--soft:#9b9ea5;--line:#32363b;
--good:#4fbda2;--bad:#ea7f66;--one:#4fbda2;--two:#e2a54d;--three:#7fb0f0;--four:#e585be;--five:#a7adb6}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 var(--sans);font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:clamp(20px,5vw,64px) clamp(16px,4vw,40px)}
h1,h2,h3{font-weight:600;line-height:1.2;margin:0}
h2{font:600 26px/1.2 var(--serif);letter-spacing:-.01em;margin-bottom:16px}
h3{font:600 15px/1.3 var(--sans)}
p{margin:0}
section{margin-top:clamp(44px,6vw,72px);padding-top:20px;border-top:1px solid var(--line)}
.note,figure p,.none,caption{color:var(--soft)}
.note{max-width:52em;text-wrap:pretty;margin:-8px 0 18px}
.verdict .over{color:var(--soft);font-size:15px;overflow-wrap:anywhere}
.verdict h1{font:600 clamp(34px,6vw,56px)/1.08 var(--serif);letter-spacing:-.02em;margin:6px 0 16px}
.verdict.good h1{color:var(--good)}.verdict.bad h1{color:var(--bad)}
.verdict .words{font:400 clamp(17px,2vw,20px)/1.55 var(--serif);max-width:40em;overflow-wrap:anywhere}
.verdict .more{max-width:52em;margin-top:12px;overflow-wrap:anywhere;text-wrap:pretty}
.rules{list-style:none;margin:28px 0 0;padding:0;border-top:1px solid var(--line)}
.rules li{display:grid;grid-template-columns:28px minmax(0,1fr) minmax(0,1.4fr) minmax(0,1.2fr);gap:2px 16px;
padding:12px 0;border-bottom:1px solid var(--line);align-items:baseline}
.rules b::first-letter{text-transform:uppercase}
.rules svg{width:18px;height:18px;align-self:center}
.rules small{color:var(--soft);font-size:14px}
li.good svg.mark{color:var(--good)}li.bad svg.mark{color:var(--bad)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:14px}
.cards>div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px 16px;min-width:0;
display:flex;flex-direction:column}
.cards span:first-child{min-height:2.9em;line-height:1.4}
.cards span{display:block;color:var(--soft);font-size:14px}
.cards strong{display:block;font:600 30px/1.25 var(--serif);letter-spacing:-.01em}
.track{display:block;position:relative;height:4px;border-radius:2px;background:var(--line);margin-top:10px}
.track i{position:absolute;top:0;height:4px;border-radius:2px;background:var(--one);min-width:3px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:28px 32px}
.plots.two{grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;max-width:560px;height:auto;margin-top:8px}
figure p{font-size:14px;margin-top:6px}
svg text{font:12px var(--sans);fill:var(--soft)}
.key{white-space:nowrap;margin-right:14px}
.reading .key{margin:0}.reading .key i{width:11px;height:11px}
.key i{display:inline-block;width:14px;height:3px;border-radius:2px;vertical-align:middle;margin-right:6px}
/* The shadows show that there is more to the side; at that side's end the page's colour covers them. */
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch;background:
linear-gradient(90deg,var(--paper) 40%,transparent) left/36px 100% no-repeat local,
linear-gradient(270deg,var(--paper) 40%,transparent) right/36px 100% no-repeat local,
linear-gradient(90deg,var(--line),transparent) left/14px 100% no-repeat scroll,
linear-gradient(270deg,var(--line),transparent) right/14px 100% no-repeat scroll}
table{border-collapse:collapse;font-size:15px;width:100%}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--line);font-weight:400}
thead th{color:var(--soft);font-size:13px;white-space:nowrap}
th:first-child{text-align:left;padding-left:0}
tbody th{overflow-wrap:anywhere;min-width:5em}
table.narrow td{white-space:nowrap}
table.tight th,table.tight td{padding:7px 5px;white-space:nowrap}
table.tight tbody th{overflow-wrap:normal;min-width:0}
table.heat{font-size:14px;width:auto;border-collapse:separate;border-spacing:2px;margin-top:10px}
table.heat th,table.heat td{border:0;padding:0}
table.heat td{min-width:27px;width:44px;height:34px;text-align:center;border-radius:4px}
table.heat tbody th{padding-right:8px;text-align:right;min-width:0;white-space:nowrap;max-width:11em;overflow:hidden;
text-overflow:ellipsis}
table.heat thead th{text-align:center;vertical-align:bottom;height:28px}
table.heat thead th span.tall{writing-mode:vertical-rl;transform:rotate(180deg);max-height:9em;overflow:hidden;
text-overflow:ellipsis;display:inline-block}
.errors{display:grid;grid-template-columns:repeat(auto-fill,minmax(228px,1fr));gap:24px 20px;margin-top:18px}
.errors .seen{display:grid;grid-template-columns:1fr 1fr;gap:4px}
.errors img{display:block;width:100%;aspect-ratio:1;object-fit:contain;background:#000;border-radius:6px}
.errors img.small{image-rendering:pixelated}
.errors b{font-weight:600}.errors del{text-decoration:none;color:var(--bad)}
.errors p{color:inherit;font-size:15px;line-height:1.4;overflow-wrap:anywhere}
.errors small,code{font:13px/1.4 var(--mono);color:var(--soft);overflow-wrap:anywhere}
.strip{display:grid;grid-template-columns:repeat(auto-fill,minmax(68px,1fr));gap:8px;margin:10px 0 22px}
.strip.two{grid-template-columns:1fr 1fr;gap:4px;margin:0 0 6px}
.strip img,table.words img{display:block;width:100%;aspect-ratio:1;object-fit:contain;border-radius:6px}
.strip img.small,table.words img.small{image-rendering:pixelated}
table.words img{width:56px}
table.words th,table.words td{text-align:left;vertical-align:top}table.words tbody th{min-width:7em}
section>figure+figure,section>.scroll+figure,section>figure+.scroll,section>.scroll+.scroll{margin-top:24px}
section>.scroll+p,section>.pairs+p,section>p+.scroll,section>.pairs+.scroll{margin-top:16px}
.chain,.chain ul{list-style:none;margin:0;padding:0}
.chain li{border-left:2px solid var(--line);padding:2px 0 10px 14px;margin-top:14px}
.chain p{overflow-wrap:anywhere;font-size:15px;color:var(--soft);max-width:56em}.chain h3{overflow-wrap:anywhere}
@media (max-width:640px){.chain li{padding-left:9px}}
.pairs,.bars{margin:10px 0 0;font-size:15px}
.pairs{columns:2 400px;column-gap:40px}
.pairs>div,.bars>div{display:grid;gap:0 16px;border-bottom:1px solid var(--line);padding:5px 0;break-inside:avoid}
figure .pairs{columns:1}
.pairs>div{grid-template-columns:minmax(0,1fr) minmax(0,1.25fr)}
.bars>div{grid-template-columns:minmax(0,1fr) minmax(0,1.6fr) minmax(3.5em,auto);align-items:center}
.pairs dt,.bars dt{color:var(--soft);overflow-wrap:anywhere}
.pairs dd,.bars dd{margin:0;overflow-wrap:anywhere}
.bars dd:last-child{text-align:right}
.bars i{display:block;height:8px;border-radius:3px;background:var(--one);opacity:.75;min-width:1px}
.columns{columns:2 420px;column-gap:40px;margin-top:26px}.columns figure{break-inside:avoid;margin-bottom:28px}
.points{max-width:52em;margin:0;padding-left:1.2em}.points li{margin:8px 0;overflow-wrap:anywhere;text-wrap:pretty}
pre{margin:12px 0 0;padding:14px 16px;background:var(--card);border:1px solid var(--line);border-radius:10px}
pre code{color:inherit;overflow-wrap:normal}
details{margin-top:12px}
summary{cursor:pointer;color:var(--soft);padding:6px 0}
@media (max-width:640px){body{font-size:16px}
.rules li{grid-template-columns:28px minmax(0,1fr)}.rules span,.rules small{grid-column:2}
.cards{grid-template-columns:1fr 1fr}
table.heat{border-spacing:1px;font-size:12.5px}table.heat td{height:30px}
table.narrow{font-size:14px}table.narrow th,table.narrow td{padding:7px 5px}
table.tight{font-size:14px}table.tight th,table.tight td{padding:7px 3px}
table.narrow tbody th{overflow-wrap:break-word;min-width:6.2em;max-width:9em}
.errors{grid-template-columns:1fr;gap:14px}
.errors figure{display:grid;grid-template-columns:minmax(0,1.8fr) minmax(0,1fr);gap:12px;align-items:center}
.errors figure p{margin:0}}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
