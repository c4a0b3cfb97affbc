"""A stand-in for cuda.bindings.driver: it answers like one H200, writes down every call, and reads
back what a launch would give the kernel.
"""

import ctypes
from types import SimpleNamespace

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "CLOCK_RATE": 1_980_000,
    "MEMORY_CLOCK_RATE": 3_201_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "L2_CACHE_SIZE": 50 << 20,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}


class Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name):
        return name


class FakeDriver:
    CUdevice_attribute = CUjit_option = CUfunction_attribute = CUlaunchAttributeID = (
        CUpointer_attribute
    ) = CUstreamCaptureMode = Names()
    CUtensorMapDataType = CUtensorMapInterleave = CUtensorMapSwizzle = CUtensorMapL2promotion = (
        CUtensorMapFloatOOBfill
    ) = Names()
    cuuint32_t = cuuint64_t = CUstream = staticmethod(int)

    def __init__(self, **attributes):
        self.calls, self.attributes, self.errors, self.blocks, self.registers = (
            [],
            ATTRIBUTES | attributes,
            {},
            1,
            32,
        )
        self.current = [0]  # contexts of the calling thread, the current one last
        self.capturing, self.mode = 0, "global"
        self.capturing = 0
        # sizes: bytes of each parameter of the kernel that is launched
        self.maps, self.sizes = (
            [],
            (),
        )
        # streams that are captured (capturing: all are); the next address
        self.captured, self.memory = (
            set(),
            0x7000_0000_0000,
        )

    def CUresult(self, code):
        return code

    def cuGetErrorName(self, code):
        return 0, f"CUDA_ERROR_{code}".encode()

    def cuGetErrorString(self, code):
        return 0, b"made up"

    def CUlaunchConfig(self):
        return SimpleNamespace(numAttrs=0, attrs=[])

    def CUlaunchAttribute(self):
        return SimpleNamespace(
            id=None, value=SimpleNamespace(clusterDim=SimpleNamespace(x=1, y=1, z=1))
        )

    def _did(self, name, *args, gives=()):
        """Writes a call down; `errors[name]` is a list of codes for its next calls."""
        self.calls.append((name, *args))
        waiting = self.errors.get(name)
        return (waiting.pop(0) if waiting else 0, *gives)

    def named(self, name):
        return [c for c in self.calls if c[0] == name]

    def cuInit(self, flags):
        return self._did("cuInit")

    def cuDeviceGetCount(self):
        return self._did("cuDeviceGetCount", gives=(1,))

    def cuDeviceGet(self, n):
        return self._did("cuDeviceGet", n, gives=(n,))

    def cuDeviceGetName(self, size, device):
        return self._did("cuDeviceGetName", gives=(b"Fake H200\0",))

    def cuDeviceGetAttribute(self, name, device):
        return self._did(
            "cuDeviceGetAttribute",
            name,
            gives=(self.attributes[name.removeprefix("CU_DEVICE_ATTRIBUTE_")],),
        )

    def cuDevicePrimaryCtxRetain(self, device):
        return self._did("cuDevicePrimaryCtxRetain", device, gives=(device + 1,))

    def cuCtxGetCurrent(self):
        return 0, self.current[-1]

    def cuCtxSetCurrent(self, context):
        self.current[-1] = context
        return self._did("cuCtxSetCurrent", context)

    def cuCtxPushCurrent(self, context):
        self.current.append(context)
        return self._did("cuCtxPushCurrent", context)

    def cuCtxPopCurrent(self):
        return self._did("cuCtxPopCurrent", gives=(self.current.pop(),))

    def cuCtxSynchronize(self):
        return self._did("cuCtxSynchronize")

    def cuPointerGetAttribute(self, what, pointer):
        return self._did("cuPointerGetAttribute", gives=(0,))

    def cuModuleLoadDataEx(self, image, n, keys, values):
        return self._did("cuModuleLoadDataEx", image, gives=("module",))

    def cuModuleGetFunction(self, module, entry):
        return self._did("cuModuleGetFunction", entry, gives=("function",))

    def cuFuncSetAttribute(self, function, name, value):
        return self._did("cuFuncSetAttribute", name, value)

    def cuFuncGetAttribute(self, name, function):
        return self._did("cuFuncGetAttribute", name, gives=(self.registers,))

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function, threads, shared):
        return self._did("occupancy", gives=(self.blocks,))

    def cuOccupancyMaxActiveClusters(self, function, config):
        return self._did("clusters", config, gives=(self.blocks * 132 // 2,))

    def cuMemAlloc(self, size):
        address, self.memory = self.memory, self.memory + (1 << 20)
        return self._did("cuMemAlloc", size, gives=(address,))

    def cuEventCreate(self, flags):
        return self._did("cuEventCreate", gives=(len(self.named("cuEventCreate")),))

    def cuEventRecord(self, event, stream):
        return self._did("cuEventRecord", event, stream)

    def cuEventElapsedTime(self, begin, end):
        return self._did("cuEventElapsedTime", begin, end, gives=(0.5,))

    def cuMemcpyDtoD(self, target, source, size):
        return self._did("cuMemcpyDtoD", target, source, size)

    def cuMemFree(self, pointer):
        return self._did("cuMemFree", pointer)

    def cuMemsetD8Async(self, pointer, value, size, stream):
        return self._did("cuMemsetD8Async", pointer, value, size, stream)

    def cuStreamCreate(self, flags):
        return self._did("cuStreamCreate", flags, gives=(0x51DE,))

    def cuStreamSynchronize(self, stream):
        return self._did("cuStreamSynchronize", stream)

    def cuStreamDestroy(self, stream):
        return self._did("cuStreamDestroy", stream)

    CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP = 1, 2

    def cuMemHostAlloc(self, size, flags):
        self.host = ctypes.create_string_buffer(b"\xff" * size, size)
        return self._did("cuMemHostAlloc", size, flags, gives=(ctypes.addressof(self.host),))

    def cuMemHostGetDevicePointer(self, address, flags):
        return self._did("cuMemHostGetDevicePointer", address, gives=(address + (1 << 50),))

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.mode = self.mode, mode
        return self._did("cuThreadExchangeStreamCaptureMode", mode, gives=(before,))

    def cuStreamIsCapturing(self, stream):
        return self._did(
            "cuStreamIsCapturing", gives=(self.capturing or int(stream in self.captured),)
        )

    def cuTensorMapEncodeTiled(self, *fields):
        number = len(self.maps).to_bytes(4, "little") * 32
        self.maps.append(fields)
        self.keep = ctypes.create_string_buffer(number, 128)
        return (
            *self._did("cuTensorMapEncodeTiled", *fields),
            SimpleNamespace(getPtr=lambda: ctypes.addressof(self.keep)),
        )

    def cuLaunchKernel(self, function, x, y, z, bx, by, bz, shared, stream, address, extra):
        return self._did("launch", (x, y, z), (bx, by, bz), shared, stream, self._read(address))

    def cuLaunchCooperativeKernel(self, function, x, y, z, bx, by, bz, shared, stream, address):
        return self._did(
            "launch together", (x, y, z), (bx, by, bz), shared, stream, self._read(address)
        )

    def cuLaunchKernelEx(self, config, function, address, extra):
        return self._did(
            "launch",
            (config.gridDimX, config.gridDimY, config.gridDimZ),
            (config.blockDimX, 1, 1),
            config.sharedMemBytes,
            config.hStream,
            self._read(address),
            config,
        )

    def _read(self, address):
        """What the driver copies during the call: the bytes behind each of the addresses."""
        table = (ctypes.c_void_p * max(len(self.sizes), 1)).from_address(address)
        self.aligned = all(table[i] % 64 == 0 for i, n in enumerate(self.sizes) if n == 128)
        return [ctypes.string_at(table[i], n) for i, n in enumerate(self.sizes)]


class FakeDrivers(FakeDriver):
    """Two GPUs. A function belongs to the context that its module was loaded in, and a launch while
    another one is current is refused, as by the driver.
    """

    def cuDeviceGetCount(self):
        return self._did("cuDeviceGetCount", gives=(2,))

    def cuModuleLoadDataEx(self, image, n, keys, values):
        return self._did("cuModuleLoadDataEx", self.current[-1], gives=(self.current[-1],))

    def cuModuleGetFunction(self, module, entry):
        return self._did("cuModuleGetFunction", module, gives=(module,))

    def cuMemAlloc(self, size):
        self.calls.append(("allocated in", self.current[-1]))
        return super().cuMemAlloc(size)

    def cuLaunchKernel(self, function, x, y, z, bx, by, bz, shared, stream, address, extra):
        return (
            self._did("launch", function, stream, self._read(address))
            if function == self.current[-1]
            else (400,)
        )


class FakeTensor:
    """As much of a torch tensor as a launch looks at."""

    is_cuda, is_sparse, requires_grad = True, False, False

    def __init__(self, shape, dtype="float32", pointer=0x1000_0000, strides=None, device=0):
        from tkc.runtime.arrays import contiguous

        self.shape, self._strides, self._pointer = (
            tuple(shape),
            strides or contiguous(tuple(shape)),
            pointer,
        )
        self.dtype, self.device, self.is_cuda = (
            f"torch.{dtype}",
            SimpleNamespace(type="cpu" if device < 0 else "cuda", index=device),
            device >= 0,
        )

    def data_ptr(self):
        return self._pointer

    def element_size(self):
        from tkc.runtime.arrays import FOREIGN, ITEMSIZE

        name = self.dtype.removeprefix("torch.")
        return ITEMSIZE[FOREIGN.get(name, name)]

    def stride(self):
        return self._strides
