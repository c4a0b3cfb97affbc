"""`python -m benchmarks.plot`: docs/speed.svg, our speed beside the best rival's, from races.jsonl.

A bar is the median over the rounds of a race of our speed divided by the best rival's of the same
round; its line spans the quartiles.  What is slower than a rival is drawn like the rest.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import Quartiles
from benchmarks.standing import RESULTS, newest, ratios

OUT = Path(__file__).resolve().parent.parent / "docs" / "speed.svg"
# (title, race, contestant, rivals): each kind of kernel, the slowest tuned product among them
SHOWN = (
    ("product 8192 x 8192 x 8192, default", "product-8192x8192x8192", "tkc", "cuBLAS, Triton"),
    ("product 4096 x 4096 x 512, default", "product-4096x4096x512", "tkc", "cuBLAS, Triton"),
    ("product 16 x 14336 x 4096, default", "product-16x14336x4096", "tkc", "cuBLAS, Triton"),
    ("product 8192 x 4096 x 14336, default", "product-8192x4096x14336", "tkc", "cuBLAS, Triton"),
    ("float8 product 8192³", "fp8-fast-8192x8192x8192", "tkc 128x256x128", "cuBLAS"),
    (
        "float8 product 8192³, block scales",
        "fp8-blocks-8192x8192x8192",
        "tkc 256x128x128",
        "cuBLAS",
    ),
    ("attention D = 128, S = 8192", "attention-full-8192", "tkc", "cuDNN"),
    ("attention D = 128, S = 8192, causal", "attention-causal-8192", "tkc", "cuDNN"),
    ("attention D = 64, S = 4096, causal", "attention-d64-causal-4096", "tkc", "cuDNN"),
    ("softmax 2048 x 131072", "softmax-2048x131072", "tkc", "torch.compile"),
    ("RMS norm 8192 x 8192", "rms_norm-8192x8192", "tkc", "torch"),
    ("cross-entropy 2048 x 131072", "cross_entropy-2048x131072", "tkc", "torch"),
)
WIDTH, BAR, LEFT, TOP = 860, 22, 300, 40  # pixels
COLOURS = {True: "#2f7ed8", False: "#c0392b"}


def rows() -> list[tuple[str, Quartiles]]:
    """Title and speed beside the best rival of each race that is there, with its commit."""
    races = {race["name"]: race for race in newest([RESULTS])}
    found = []
    for title, name, ours, _ in SHOWN:
        race = races.get(name)
        if race and ours in race["seconds"] and (ratio := ratios(race, ours)):
            found.append((title, ratio))
    return found


def draw(table: list[tuple[str, Quartiles]]) -> str:
    """The bars as SVG text."""
    most = max(ratio.high for _, ratio in table)
    scale = (WIDTH - LEFT - 70) / max(most, 1.5)
    height = TOP + BAR * len(table) + 20
    one = LEFT + scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20">speed beside the best rival of the same round'
        " (median, quartiles), one H200</text>",
    ]
    for i, (title, ratio) in enumerate(table):
        y = TOP + BAR * i
        middle = y + BAR / 2
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{title}</text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{ratio.median * scale:.1f}" height="{BAR - 6}"'
            f' fill="{COLOURS[ratio.median >= 1]}" opacity="0.85"/>',
            f'<line x1="{LEFT + ratio.low * scale:.1f}" x2="{LEFT + ratio.high * scale:.1f}"'
            f' y1="{middle}" y2="{middle}" stroke="black"/>',
            f'<text x="{LEFT + ratio.high * scale + 6:.1f}" y="{middle + 4}">'
            f"{ratio.median:.2f}</text>",
        ]
    bottom = TOP + BAR * len(table)
    parts += [
        f'<line x1="{one}" x2="{one}" y1="{TOP - 6}" y2="{bottom}" stroke="black"'
        ' stroke-dasharray="3 3"/>',
        f'<text x="{one}" y="{bottom + 14}" text-anchor="middle">the best rival = 1</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Writes the plot."""
    OUT.write_text(draw(rows()))
    print(OUT)


if __name__ == "__main__":
    main()
