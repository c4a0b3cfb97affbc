"""The instruction forms that tkc's emitter can spell and whose meaning is more than arithmetic:
each must have a belief.

A form is a regular expression of whole opcodes, PLAIN the first words of those that only compute,
move a value or branch.  An opcode that is neither is new: it gets its line here and its belief
beside it.
"""

from __future__ import annotations

import re

SCOPE, WORDS = "(cta|gpu|sys)", "(s32|u32|s64|u64)"
PAIRS = r"(bf16\.bf16|f16\.f16)"

TENSOR_COPY = (
    r"cp\.async\.bulk\.tensor\.[1-5]d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
)

FORMS: tuple[str, ...] = (
    r"bar\.sync",
    r"bar\.arrive",
    r"bar\.warp\.sync",
    r"elect\.sync",
    r"griddepcontrol\.(wait|launch_dependents)",
    r"setmaxnreg\.inc\.sync\.aligned\.u32",
    r"setmaxnreg\.dec\.sync\.aligned\.u32",
    r"barrier\.cluster\.arrive\.aligned",
    r"barrier\.cluster\.arrive\.relaxed\.aligned",
    r"barrier\.cluster\.wait\.aligned",
    r"mapa\.shared::cluster\.u32",
    rf"fence\.acq_rel\.{SCOPE}",
    r"membar\.cta",
    r"membar\.gl",
    r"fence\.proxy\.async\.shared::cta",
    r"fence\.proxy\.async\.global",
    r"fence\.mbarrier_init\.release\.cluster",
    rf"ld\.acquire\.{SCOPE}\.global\.(b8|u8|b16|b32|b64)",
    rf"st\.release\.{SCOPE}\.global\.(b8|b16|b32|b64)",
    rf"ld\.relaxed\.{SCOPE}\.global\.(b8|u8|b16|b32|b64)",
    rf"st\.relaxed\.{SCOPE}\.global\.(b8|b16|b32|b64)",
    r"mbarrier\.init\.shared::cta\.b64",
    r"mbarrier\.arrive\.shared::cta\.b64",
    r"mbarrier\.arrive\.shared::cluster\.b64",
    r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64",
    r"mbarrier\.try_wait\.parity\.shared::cta\.b64",
    r"mbarrier\.test_wait\.parity\.shared::cta\.b64",
    r"cp\.async\.ca\.shared\.global",
    r"cp\.async\.cg\.shared\.global",
    r"cp\.async\.mbarrier\.arrive\.noinc\.shared::cta\.b64",
    r"cp\.async\.commit_group",
    r"cp\.async\.wait_group",
    r"cp\.async\.wait_all",
    *(
        rf"cp\.async\.bulk\.tensor\.{n}d\.shared::cluster\.global\.mbarrier::complete_tx::bytes"
        for n in range(1, 6)
    ),
    rf"{TENSOR_COPY}\.L2::cache_hint",
    rf"{TENSOR_COPY}\.multicast::cluster",
    rf"{TENSOR_COPY}\.multicast::cluster\.L2::cache_hint",
    *(rf"cp\.async\.bulk\.tensor\.{n}d\.global\.shared::cta\.bulk_group" for n in range(1, 6)),
    *(
        rf"cp\.reduce\.async\.bulk\.tensor\.[1-5]d\.global\.shared::cta\.{kind}\.bulk_group"
        for kind in ("add", "max", "min")
    ),
    r"cp\.async\.bulk\.commit_group",
    r"cp\.async\.bulk\.wait_group",
    r"cp\.async\.bulk\.wait_group\.read",
    r"prefetch\.tensormap",
    r"wgmma\.fence\.sync\.aligned",
    r"wgmma\.commit_group\.sync\.aligned",
    r"wgmma\.wait_group\.sync\.aligned",
    *(
        rf"wgmma\.mma_async\.sync\.aligned\.m64n\d+{rest}"
        for rest in (
            r"k16\.f32\.bf16\.bf16",
            r"k16\.f32\.f16\.f16",
            r"k16\.f16\.f16\.f16",
            r"k8\.f32\.tf32\.tf32",
            *(
                rf"k32\.{s}\.{a}\.{b}"
                for s in ("f32", "f16")
                for a in ("e4m3", "e5m2")
                for b in ("e4m3", "e5m2")
            ),
            *(rf"k32\.s32\.{a}\.{b}" for a in ("s8", "u8") for b in ("s8", "u8")),
        )
    ),
    *(
        rf"mma\.sync\.aligned\.m16n8{rest}"
        for rest in (
            r"k16\.row\.col\.f32\.bf16\.bf16\.f32",
            r"k16\.row\.col\.f32\.f16\.f16\.f32",
            r"k16\.row\.col\.f16\.f16\.f16\.f16",
            r"k8\.row\.col\.f32\.tf32\.tf32\.f32",
            *(
                rf"k32\.row\.col\.f32\.{a}\.{b}\.f32"
                for a in ("e4m3", "e5m2")
                for b in ("e4m3", "e5m2")
            ),
            *(rf"k32\.row\.col\.s32\.{a}\.{b}\.s32" for a in ("s8", "u8") for b in ("s8", "u8")),
        )
    ),
    *(
        rf"{kind}\.sync\.aligned\.m8n8\.x{n}{trans}\.shared\.b16"
        for kind in ("ldmatrix", "stmatrix")
        for n in (1, 2, 4)
        for trans in ("", r"\.trans")
    ),
    r"shfl\.sync\.bfly\.b32",
    r"shfl\.sync\.idx\.b32",
    r"redux\.sync\.(add|min|max)\.(s32|u32)",
    r"redux\.sync\.xor\.b32",
    r"vote\.sync\.all\.pred",
    r"bar\.red\.and\.pred",
    *(
        rf"st\.shared::cluster\.{size}"
        for size in ("b8", "b16", "b32", "b64", r"v2\.b32", r"v4\.b32", r"v2\.b64")
    ),
    *(
        rf"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes\.{size}"
        for size in ("b32", "b64", r"v2\.b32", r"v4\.b32", r"v2\.b64")
    ),
    *(
        rf"{kind}\.relaxed\.{SCOPE}\.global\.{form}"
        for kind in ("red", "atom")
        for form in (
            r"add\.s32",
            r"add\.u32",
            r"add\.u64",
            r"add\.f32",
            r"add\.f64",
            r"add\.noftz\.f16",
            r"add\.noftz\.bf16",
            *(rf"{o}\.{t}" for o in ("max", "min") for t in ("s32", "u32", "s64", "u64")),
            *(rf"{o}\.b{w}" for o in ("and", "or", "xor") for w in (32, 64)),
        )
    ),
    rf"red\.relaxed\.{SCOPE}\.global\.add\.noftz(\.v2|\.v4)?\.(f16x2|bf16x2)",
    rf"red\.relaxed\.{SCOPE}\.global\.add\.v[24]\.f32",
    *(rf"atom\.relaxed\.{SCOPE}\.global\.{o}\.b{w}" for o in ("exch", "cas") for w in (32, 64)),
    r"red\.relaxed\.cta\.shared\.add\.u32",
    r"atom\.relaxed\.gpu\.global\.inc\.u32",
)
PLAIN = frozenset(
    [
        "abs",
        "add",
        "and",
        "bfe",
        "bfi",
        "bra",
        "brev",
        "call",
        "clz",
        "copysign",
        "cos",
        "cvt",
        "cvta",
        "div",
        "ex2",
        "fma",
        "ld",
        "lg2",
        "lop3",
        "mad",
        "max",
        "min",
        "mov",
        "mul",
        "neg",
        "not",
        "or",
        "popc",
        "prmt",
        "rcp",
        "rem",
        "ret",
        "rsqrt",
        "selp",
        "setp",
        "shf",
        "shl",
        "shr",
        "sin",
        "sqrt",
        "st",
        "sub",
        "tanh",
        "testp",
        "trap",
        "xor",
    ]
)
# words that make a load or store more than that
ORDERING = (
    "acquire",
    "release",
    "relaxed",
    "volatile",
    "acq_rel",
    "cluster",
    "multicast",
)


def form_of(opcode: str) -> str | None:
    """The form of an opcode; "" of one that only computes, None of one that nobody knows."""
    found = next((f for f in FORMS if re.fullmatch(f, opcode)), None)
    if found is not None:
        return found
    words = re.split(r"\.|::", opcode)
    return "" if words[0] in PLAIN and not any(w in ORDERING for w in words) else None


def opcodes(ptx: str) -> set[str]:
    """Those of a PTX text, predicates and operands left out."""
    return {
        m[1]
        for line in ptx.splitlines()
        for part in re.sub(r"//.*", "", line).split(";")
        if (
            m := re.match(
                r"\s*(?:[{}]\s*|[$\w]+:\s*|@!?%\w+\s+)*([a-z][a-z0-9_]*(?:(?:\.|::)[A-Za-z0-9_]+)*)(?=\s|$)",
                part,
            )
        )
        and not part.strip().startswith((".", '"'))
        and m[1] not in ("shared",)
    }
