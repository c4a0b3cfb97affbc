"""ptxas: finding it, reading what it says, and what becomes of its refusals."""

import re
from dataclasses import replace

import pytest

import tkc
from tkc.codegen.ptx import ptxas
from tkc.errors import CompileError

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attention' for 'sm_90a'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to insufficient register resources for the wgmma pipeline in function 'attention'
ptxas info    : Function properties for attention
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 168 registers, used 5 barriers, 16 bytes cumulative stack size, 1024 bytes smem
"""
PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .u64 %d<2>; .reg .u32 %r;
  ld.param.u64 %d0, [p]; mov.u32 %r, %tid.x; mad.wide.u32 %d1, %r, 4, %d0; st.global.u32 [%d1], %r;
  ret;
}
"""
needs_ptxas = pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
needs_nvdisasm = pytest.mark.skipif(
    ptxas.find("nvdisasm") is None, reason="nvdisasm is not installed"
)


def test_a_log_is_read():
    a = ptxas.parse(LOG)
    assert (a.registers, a.spill_stores, a.spill_loads, a.stack, a.static_shared, a.barriers) == (
        168,
        24,
        40,
        16,
        1024,
        5,
    )
    assert len(a.notes) == 1 and "C7510" in a.notes[0] and not a.clean


@pytest.mark.parametrize(
    "line",
    [
        "    0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads",
        "ptxas info : (C7517) repaired",
        "ptxas info : (C7602) x",
        "    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
    ],
)
def test_each_fault_is_a_fault(line):
    assert not ptxas.parse(line).clean


def test_an_empty_log_is_clean():
    assert ptxas.parse("").clean


@needs_ptxas
def test_assembling():
    a = ptxas.assemble(PTX, "sm_80")
    assert a.cubin[:4] == b"\x7fELF" and a.registers and a.clean
    assert ptxas.version(ptxas.find("ptxas"))[0].isdigit()
    # ptxas knows architectures alone
    assert ptxas.assemble(PTX, "sm_80:a100_80").registers == a.registers


@needs_ptxas
@needs_nvdisasm
def test_disassembling():
    assert "STG" in ptxas.disassemble(ptxas.assemble(PTX, "sm_80").cubin)


@needs_ptxas
@pytest.mark.parametrize(
    "bad", ["bra nowhere;", "mov.u32 %r, %d0;", "wgmma.fence.sync.aligned;", "}}"]
)
def test_a_refusal_is_a_sentence_with_the_line(bad):
    with pytest.raises(CompileError, match="which is a bug of tkc") as e:
        ptxas.assemble(PTX.replace("ret;", bad + " ret;"), "sm_80")
    assert len(str(e.value).splitlines()) == 1
    kept = str(e.value).rsplit(" ", 1)[1]
    with open(kept) as f:
        assert bad in f.read()
    import os

    os.unlink(kept)


def test_without_the_tool_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(ptxas, "find", lambda tool: None)
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvcc"):
        ptxas.assemble(PTX, "sm_80")
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvdisasm"):
        ptxas.disassemble(b"")


def test_the_environment_chooses(monkeypatch, tmp_path):
    own = tmp_path / "ptxas"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("TKC_PTXAS", str(own))
    assert ptxas.find("ptxas") == str(own)
    monkeypatch.setenv("TKC_PTXAS", "/no/such")
    assert ptxas.find("ptxas") is None


@pytest.mark.parametrize("users", [None, "glibc.malloc.check=1"])
def test_memory_is_tuned_unless_the_user_does(users, monkeypatch, tmp_path):
    own, told = tmp_path / "ptxas", tmp_path / "told"
    own.write_text(f'#!/bin/sh\nprintf %s "$GLIBC_TUNABLES" > {told}\nexit 1\n')
    own.chmod(0o755)
    monkeypatch.setenv("TKC_PTXAS", str(own))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where a refused text is kept
    if users is None:
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    else:
        monkeypatch.setenv("GLIBC_TUNABLES", users)
    with pytest.raises(CompileError, match="it stopped with code 1"):
        ptxas.assemble(PTX, "sm_80")
    assert told.read_text() == (users or ptxas.TUNABLES)


def test_fewer_blocks_are_asked_for_by_their_registers():
    """Of 128 threads 8 blocks have 64 registers each, 7 have 72; of 512 5 have more than 8."""
    text = ".reqntid 128, 1, 1\n.minnctapersm 8\n{"
    assert ptxas.fewer_blocks(text, "sm_90a", 128) == [7, 6, 5, 4, 3, 2, 1]
    assert ptxas.fewer_blocks(text, "sm_90a", 512) == [5, 4, 3, 2, 1]
    assert ptxas.fewer_blocks(".reqntid 128, 1, 1\n{", "sm_90a", 128) == [1]
    assert ".minnctapersm 7\n" in ptxas.roomy(text, 128, 7)


def summed(x, out, N: tkc.constexpr):
    total = tkc.zeros((N,))
    for k in tkc.range(0, x.shape[1], N):
        total = total + tkc.load(x, (tkc.program_id(0), k), (None, N))
    tkc.store(out, (tkc.program_id(0),), tkc.sum(total))


@pytest.mark.parametrize("most", [2, 5])
def test_what_spills_gives_up_no_more_blocks_than_it_must(most, monkeypatch):
    asked = []

    def assemble(text, target):
        if ".minnctapersm" not in text:
            return ptxas.Assembled(b"", 64, 8, 8, 0, 0, 0, (), "")
        blocks = ptxas.blocks_of(text)
        asked.append(blocks)
        spilled = 8 * max(0, blocks - most)
        return ptxas.Assembled(b"", 64, spilled, spilled, 0, 0, 0, (), "")

    compiled = tkc.jit(summed).compile("f32[64, 65536]", "f32[64]", N=1024, target="sm_90a")
    first = int(re.search(r"\.minnctapersm (\d+)", compiled.ptx)[1])
    monkeypatch.setattr(ptxas, "assemble", assemble)
    assert first > most and not compiled.resources.spill_stores
    assert min(asked) == most and f".minnctapersm {most}\n" in compiled.ptx


@pytest.mark.parametrize(
    "registers, most, is_told", [(16, 2, False), (72, 2, False), (255, 3, True)]
)
def test_what_spills_as_it_is_told_of_blocks_is_not_told(registers, most, is_told, monkeypatch):
    """If as many share a multiprocessor anyway; else before as few are asked for."""

    def assemble(text, target):
        spilled = 8 if ".minnctapersm" in text and ptxas.blocks_of(text) > most else 0
        return ptxas.Assembled(b"", registers, spilled, spilled, 0, 0, 0, (), "")

    compiled = tkc.jit(summed).compile("f32[64, 65536]", "f32[64]", N=1024, target="sm_90a")
    told = ptxas.blocks_of(compiled.ptx)
    monkeypatch.setattr(ptxas, "assemble", assemble)
    assert not compiled.resources.spill_stores and told > most
    assert (f".minnctapersm {most}\n" in compiled.ptx) == is_told
    assert (".minnctapersm" in compiled.ptx) == is_told


@pytest.mark.parametrize("tiles, untold, tried", [(64, 80, False), (64, 64, True), (32, 80, True)])
def test_what_will_spill_is_not_tried(tiles, untold, tried, monkeypatch):
    """Tiles leave too little of what so many blocks have, and untold of them it takes more."""
    texts = []

    def assemble(text, target):
        texts.append(text)
        is_told = ".minnctapersm" in text
        spilled = 8 if is_told and tiles > 32 and untold > 64 else 0
        return ptxas.Assembled(b"", 64 if is_told else untold, spilled, spilled, 0, 0, 0, (), "")

    compiled = tkc.jit(summed).compile("f32[64, 65536]", "f32[64]", N=1024, target="sm_90a")
    planned = re.sub(r"\.minnctapersm \d+", ".minnctapersm 8", compiled.ptx)
    interface = replace(compiled.interface, threads=128, tile_registers=tiles)
    compiled = replace(compiled, ptx=planned, interface=interface)
    monkeypatch.setattr(ptxas, "assemble", assemble)
    assert not compiled.resources.spill_stores
    assert (planned in texts) == tried == (compiled.ptx == planned)
