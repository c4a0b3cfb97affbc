"""A libcuda and cuda.h in a page of C, for exported launchers.

Every call is printed; a launch prints the parameters it is given.
"""

CUDA_H = r"""
#ifndef STUB_CUDA_H
#define STUB_CUDA_H
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct { _Alignas(64) unsigned char opaque[128]; } CUtensorMap;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
typedef enum {
    CU_TENSOR_MAP_DATA_TYPE_UINT8,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
} CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum {
    CU_TENSOR_MAP_SWIZZLE_NONE,
    CU_TENSOR_MAP_SWIZZLE_32B,
    CU_TENSOR_MAP_SWIZZLE_64B,
    CU_TENSOR_MAP_SWIZZLE_128B
} CUtensorMapSwizzle;
typedef enum {
    CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
} CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;
enum {
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};

typedef struct {
    int id;
    union {
        struct { unsigned x, y, z; } clusterDim;
        int programmaticStreamSerializationAllowed;
    } value;
} CUlaunchAttribute;
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleUnload(CUmodule);
CUresult cuFuncSetAttribute(CUfunction, int, int);
CUresult cuMemAlloc(CUdeviceptr *, size_t);
CUresult cuMemFree(CUdeviceptr);
CUresult cuMemsetD8(CUdeviceptr, unsigned char, size_t);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetDevice(CUdevice *);
CUresult cuDeviceGetAttribute(int *, int, CUdevice);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *, CUfunction, int, size_t);
CUresult cuOccupancyMaxActiveClusters(int *, CUfunction, const CUlaunchConfig *);
CUresult cuTensorMapEncodeTiled(
    CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
    const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
CUresult cuLaunchKernel(
    CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
    void **, void **);
CUresult cuLaunchCooperativeKernel(
    CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
    void **);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
#endif
"""

LIBCUDA = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda.h"
#ifndef SIZES
#define SIZES 0
#endif

static const int sizes[] = { SIZES };
static int maps;

static CUresult launch(
    unsigned x, unsigned y, unsigned z, unsigned threads, unsigned shared, CUstream stream,
    void **p, unsigned cx, unsigned cy)
{
    printf("launch %u %u %u x %u shared %u", x, y, z, threads, shared);
    printf(" stream %lu cluster %u %u\n", (unsigned long)stream, cx, cy);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        printf("parameter");
        for (int k = 0; k < sizes[i]; k++) printf(" %02x", ((unsigned char *)p[i])[k]);
        printf("\n");
    }
    return 0;
}

CUresult cuModuleLoadData(CUmodule *m, const void *text)
{
    int code = !memcmp(text, "\177ELF", 4);
    *m = (CUmodule)1;
    if (code) printf("load code\n"); else printf("load %zu\n", strlen(text));
    return code && getenv("REFUSE_CODE") ? 209 : 0;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
    *f = (CUfunction)2;
    printf("function %s\n", name);
    return 0;
}

CUresult cuModuleUnload(CUmodule m)
{
    printf("unload\n");
    return 0;
}

CUresult cuFuncSetAttribute(CUfunction f, int name, int value)
{
    printf("attribute %d = %d\n", name, value);
    return 0;
}

CUresult cuMemAlloc(CUdeviceptr *p, size_t n)
{
    *p = 0x7000;
    printf("allocate %zu\n", n);
    return 0;
}

CUresult cuMemFree(CUdeviceptr p)
{
    printf("free\n");
    return 0;
}

CUresult cuCtxSynchronize(void)
{
    return 0;
}

CUresult cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n)
{
    printf("clear %zu\n", n);
    return 0;
}

CUresult cuCtxGetDevice(CUdevice *d)
{
    *d = 0;
    return 0;
}

CUresult cuDeviceGetAttribute(int *v, int name, CUdevice d)
{
    *v = 132;
    return 0;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int t, size_t s)
{
    *n = 1;
    return 0;
}

CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c)
{
    *n = 66;
    return 0;
}

CUresult cuTensorMapEncodeTiled(
    CUtensorMap *m, CUtensorMapDataType t, cuuint32_t rank, void *p, const cuuint64_t *e,
    const cuuint64_t *s, const cuuint32_t *b, const cuuint32_t *o, CUtensorMapInterleave i,
    CUtensorMapSwizzle w, CUtensorMapL2promotion l, CUtensorMapFloatOOBfill f)
{
    memset(m, ++maps, sizeof *m);
    printf("map %lu :", (unsigned long)p);
    for (unsigned k = 0; k < rank; k++) printf(" %lu", (unsigned long)e[k]);
    printf(" :");
    for (unsigned k = 0; k + 1 < rank; k++) printf(" %lu", (unsigned long)s[k]);
    printf(" :");
    for (unsigned k = 0; k < rank; k++) printf(" %u", b[k]);
    printf(" : %d %d\n", (int)w, 128 * (int)l);
    return 0;
}

CUresult cuLaunchKernel(
    CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
    unsigned s, CUstream st, void **p, void **extra)
{
    return launch(x, y, z, bx, s, st, p, 1, 1);
}

CUresult cuLaunchCooperativeKernel(
    CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
    unsigned s, CUstream st, void **p)
{
    printf("together\n");
    return launch(x, y, z, bx, s, st, p, 1, 1);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **extra)
{
    unsigned cx = 1, cy = 1;
    for (unsigned k = 0; k < c->numAttrs; k++)
        if (c->attrs[k].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            cx = c->attrs[k].value.clusterDim.x, cy = c->attrs[k].value.clusterDim.y;
        else
            printf("attribute %d\n", c->attrs[k].id);
    return launch(
        c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->sharedMemBytes, c->hStream, p,
        cx, cy);
}
"""
