"""3 tensors, and 4 tensors + 8 scalars: bare cuda-python, bare ctypes, tkc, prepared, triton."""
import ctypes, time, statistics, torch, tkc
from functools import partial
from cuda.bindings import driver as d
from benchmarks import launch as L, harness
@tkc.jit
def eight(x, y, z, out, n, a, b, c, e, f, g, h, BLOCK: tkc.constexpr = 128):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    m = i < n
    v = tkc.load(x.ptr + i, mask=m) * a + tkc.load(y.ptr + i, mask=m) * b + tkc.load(z.ptr + i, mask=m) * c
    tkc.store(out.ptr + i, v + (e + f + g + h), mask=m)
def rows(f, n=5000):
    r=[]
    for _ in range(9):
        torch.cuda.synchronize(); t=time.perf_counter()
        for _ in range(n): f()
        r.append((time.perf_counter()-t)/n*1e6); torch.cuda.synchronize()
    return statistics.median(r), min(r)
N=1024
x,y,z=(torch.randn(N,device="cuda") for _ in range(3)); out=torch.empty_like(x)
add=harness.example("vector_add").add
bare=L.bare(x,y,out)
add[(1,)](x,y,out,N); prep=add.prepare(x,y,out,N,grid=1)
g=add[(1,)]
t={}
t["bare cuda-python"]=bare
vals,ptrs,_=bare.keep
from tkc.runtime import driver as D
lib=ctypes.CDLL("libcuda.so.1")
t["tkc 3 tensors"]=lambda: add[(1,)](x,y,out,N)
t["tkc 3 tensors, launcher kept"]=lambda: g(x,y,out,N)
t["tkc prepared"]=prep
scal=(N,1.5,2.5,3.5,4.5,5.5,6.5,7.5)
eight[(8,)](x,y,z,out,*scal); ge=eight[(8,)]; pe=eight.prepare(x,y,z,out,*scal,grid=8)
t["tkc 4 tensors + 8 scalars"]=lambda: eight[(8,)](x,y,z,out,*scal)
t["tkc 4+8 prepared"]=pe
t["empty python call"]=lambda: None
try:
    import triton, triton.language as tl
    from benchmarks import rivals_triton
    t["triton 3 tensors"]=lambda: rivals_triton.add(x,y,out)
    @triton.jit
    def teight(x,y,z,o,n,a,b,c,e,f,g,h,BLOCK:tl.constexpr):
        i=tl.program_id(0)*BLOCK+tl.arange(0,BLOCK); m=i<n
        tl.store(o+i, tl.load(x+i,mask=m)*a+tl.load(y+i,mask=m)*b+tl.load(z+i,mask=m)*c+(e+f+g+h), mask=m)
    t["triton 4+8"]=lambda: teight[(8,)](x,y,z,out,*scal,BLOCK=128)
except Exception as ex: print(ex)
for f in t.values(): f()
inner=prep._launch
t["Launch call only (driver)"]=next(iter(inner.calls.values()))
for k,f in t.items(): print(f"{k:40s} median {rows(f)[0]:.2f} us  min {rows(f)[1]:.2f}")
import torch._C as C
raw=C._cuda_getCurrentRawStream
for name,f in {"data_ptr":lambda:x.data_ptr(),"shape":lambda:x.shape,"stride":lambda:x.stride(),"dtype":lambda:x.dtype,"is_cuda":lambda:x.is_cuda,"raw stream":partial(raw,0)}.items(): print(name, f"{rows(f)[0]*1000:.0f} ns")
