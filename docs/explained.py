"""The pages of `tkc explain` on the documentation site: five kernels, made by `make docs`.

`python docs/explained.py FOLDER` writes them without the site.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import tkc  # noqa: E402

MARK = "<!-- pages -->"  # in docs/explain.md: where the list of them goes


@tkc.jit
def pointer_product(a, b, c, BM: tkc.constexpr = 128, BN: tkc.constexpr = 128):
    """A product in Triton's way: tiles of pointers that walk the arrays."""
    rows = tkc.program_id(0) * BM + tkc.arange(BM)
    columns = tkc.program_id(1) * BN + tkc.arange(BN)
    depth = tkc.arange(64)
    left = a.ptr + rows[:, None] * a.strides[0] + depth[None, :]
    right = b.ptr + depth[:, None] * b.strides[0] + columns[None, :]
    total = tkc.zeros((BM, BN))
    for _ in tkc.range(0, a.shape[1], 64):
        total = tkc.dot(tkc.load(left), tkc.load(right), total)
        left += 64
        right += 64 * b.strides[0]
    tkc.store(c.ptr + rows[:, None] * c.strides[0] + columns[None, :], total.to(c.dtype))


def grid(args: dict) -> tuple[int, int]:
    """Of `pointer_product`."""
    rows, columns = args["c"].shape
    return tkc.cdiv(rows, args["BM"]), tkc.cdiv(columns, args["BN"])


@dataclass(frozen=True)
class Page:
    """A page: its file's name, what it is about, and the words of its command."""

    name: str
    title: str
    kernel: str
    arguments: str
    grid: tuple[int, ...] | None = None

    @property
    def command(self) -> str:
        """As a reader would type it."""
        words = [self.kernel, self.arguments]
        if self.grid:
            words.append(f"--grid {','.join(map(str, self.grid))}")
        return f"tkc explain {' '.join(words)}"


SQUARES = "a=bf16[4096,4096] b=bf16[4096,4096] c=bf16[4096,4096]"
HEADS = " ".join(f"{name}=bf16[4,16,4096,128]" for name in "qkvo")
PAGES = (
    Page("product", "a product by wgmma, ping-pong", "examples/matmul.py:matmul", SQUARES),
    Page(
        "attention",
        "attention, two dots and an online softmax",
        "examples/attention.py:attention",
        f"{HEADS} scale=0.088 CAUSAL=False D=128",
        (32, 16, 4),
    ),
    Page(
        "softmax",
        "softmax of rows",
        "examples/softmax.py:softmax",
        "x=f32[8192,4096] out=f32[8192,4096] COLUMNS=4096",
        (8192,),
    ),
    Page("sum", "a sum along rows, of the library", "tkc.kernels:sum", "x=f32[8192,4096]"),
    Page(
        "pointer-product",
        "a product by pointers, which become blocks",
        "docs/explained.py:pointer_product",
        SQUARES,
    ),
)


def write(folder: Path) -> None:
    """Writes every page. Raises tkc.Error where a kernel does not compile."""
    from tkc.tools.explain.command import explain

    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        module, colon, name = page.kernel.rpartition(":")
        kernel = f"{ROOT / module}{colon}{name}" if module.endswith(".py") else page.kernel
        path = str(folder / f"{page.name}.html")
        made = explain(kernel, page.arguments.split(), (), page.grid, "sm_90a", 1, False, path)
        if made.error:
            raise tkc.CompileError(f"{page.command}: {made.error}")


def listed() -> str:
    """The pages as Markdown."""
    return "\n".join(
        f"- [{page.title}](explain/{page.name}.html): `{page.command}`" for page in PAGES
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
