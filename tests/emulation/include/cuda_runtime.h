// The emulated build's cuda_runtime.h: what the project calls, and no more, under the names, with
// the values and layouts of CUDA 13. What they do here is said in
// tests/emulation/cuda/runtime.h; the device language comes from simt.h. headers_check.cc holds it
// against the real header where that is installed (it defines HOLDFAST_EMULATED_NAMES and reads the
// declarations alone).
#ifndef HOLDFAST_TESTS_EMULATION_CUDA_RUNTIME_H_
#define HOLDFAST_TESTS_EMULATION_CUDA_RUNTIME_H_

#include <stddef.h>

#ifndef HOLDFAST_EMULATED_NAMES
#define HOLDFAST_EMULATED_API extern "C"
#include "tests/emulation/simt.h"
#define CUDART_VERSION 13000
#endif

// ---- Errors

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevicePointer = 17,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorStubLibrary = 34,
  cudaErrorInsufficientDriver = 35,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorECCUncorrectable = 214,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorContained = 226,
  cudaErrorOperatingSystem = 304,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorNotSupported = 801,
  cudaErrorSystemNotReady = 802,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorUnknown = 999
};
typedef enum cudaError cudaError_t;

HOLDFAST_EMULATED_API const char* cudaGetErrorName(cudaError_t error);
HOLDFAST_EMULATED_API const char* cudaGetErrorString(cudaError_t error);
HOLDFAST_EMULATED_API cudaError_t cudaGetLastError(void);
HOLDFAST_EMULATED_API cudaError_t cudaPeekAtLastError(void);

// ---- Devices

typedef struct CUuuid_st {
  char bytes[16];
} cudaUUID_t;

// The fields that are filled; what lies between them is reserved.
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  char reserved_luid[16];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  size_t totalConstMem;
  int major;
  int minor;
  char reserved_textures[16];
  int multiProcessorCount;
  char reserved_surfaces[180];
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int reserved_tcc;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryBusWidth;
  int l2CacheSize;
  char reserved_caches[72];
  size_t sharedMemPerBlockOptin;
  char reserved_host[40];
  int memoryPoolsSupported;
  char reserved[284];
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrPciBusId = 33,
  cudaDevAttrPciDeviceId = 34,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrPciDomainId = 50,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMemoryPoolsSupported = 115
};

HOLDFAST_EMULATED_API cudaError_t cudaGetDeviceCount(int* count);
HOLDFAST_EMULATED_API cudaError_t cudaSetDevice(int device);
HOLDFAST_EMULATED_API cudaError_t cudaGetDevice(int* device);
HOLDFAST_EMULATED_API cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attr,
                                                         int device);
HOLDFAST_EMULATED_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* prop, int device);
HOLDFAST_EMULATED_API cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device);
HOLDFAST_EMULATED_API cudaError_t cudaDriverGetVersion(int* driverVersion);
HOLDFAST_EMULATED_API cudaError_t cudaRuntimeGetVersion(int* runtimeVersion);
HOLDFAST_EMULATED_API cudaError_t cudaDeviceSynchronize(void);

// ---- Streams and events

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef void (*cudaHostFn_t)(void* userData);

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventWaitDefault 0x00

HOLDFAST_EMULATED_API cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority,
                                                                   int* greatestPriority);
HOLDFAST_EMULATED_API cudaError_t cudaStreamCreate(cudaStream_t* pStream);
HOLDFAST_EMULATED_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream,
                                                            unsigned int flags);
HOLDFAST_EMULATED_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream,
                                                               unsigned int flags, int priority);
HOLDFAST_EMULATED_API cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int* priority);
HOLDFAST_EMULATED_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
HOLDFAST_EMULATED_API cudaError_t cudaStreamQuery(cudaStream_t stream);
HOLDFAST_EMULATED_API cudaError_t cudaStreamSynchronize(cudaStream_t stream);
HOLDFAST_EMULATED_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                      unsigned int flags);
HOLDFAST_EMULATED_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn,
                                                     void* userData);
HOLDFAST_EMULATED_API cudaError_t cudaEventCreate(cudaEvent_t* event);
HOLDFAST_EMULATED_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
HOLDFAST_EMULATED_API cudaError_t cudaEventDestroy(cudaEvent_t event);
HOLDFAST_EMULATED_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
HOLDFAST_EMULATED_API cudaError_t cudaEventQuery(cudaEvent_t event);
HOLDFAST_EMULATED_API cudaError_t cudaEventSynchronize(cudaEvent_t event);
HOLDFAST_EMULATED_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start,
                                                       cudaEvent_t end);

// ---- Memory

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04

typedef struct CUmemPoolHandle_st* cudaMemPool_t;
enum cudaMemPoolAttr {
  cudaMemPoolReuseFollowEventDependencies = 0x1,
  cudaMemPoolReuseAllowOpportunistic = 0x2,
  cudaMemPoolReuseAllowInternalDependencies = 0x3,
  cudaMemPoolAttrReleaseThreshold = 0x4,
  cudaMemPoolAttrReservedMemCurrent = 0x5,
  cudaMemPoolAttrReservedMemHigh = 0x6,
  cudaMemPoolAttrUsedMemCurrent = 0x7,
  cudaMemPoolAttrUsedMemHigh = 0x8
};

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

HOLDFAST_EMULATED_API cudaError_t cudaMalloc(void** devPtr, size_t size);
HOLDFAST_EMULATED_API cudaError_t cudaFree(void* devPtr);
HOLDFAST_EMULATED_API cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream);
HOLDFAST_EMULATED_API cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream);
HOLDFAST_EMULATED_API cudaError_t cudaMallocHost(void** ptr, size_t size);
HOLDFAST_EMULATED_API cudaError_t cudaHostAlloc(void** pHost, size_t size, unsigned int flags);
HOLDFAST_EMULATED_API cudaError_t cudaFreeHost(void* ptr);
HOLDFAST_EMULATED_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
HOLDFAST_EMULATED_API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* memPool, int device);
HOLDFAST_EMULATED_API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t memPool,
                                                          enum cudaMemPoolAttr attr, void* value);
HOLDFAST_EMULATED_API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t memPool,
                                                          enum cudaMemPoolAttr attr, void* value);
HOLDFAST_EMULATED_API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep);
HOLDFAST_EMULATED_API cudaError_t cudaMemcpy(void* dst, const void* src, size_t count,
                                             enum cudaMemcpyKind kind);
HOLDFAST_EMULATED_API cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count,
                                                  enum cudaMemcpyKind kind, cudaStream_t stream);
HOLDFAST_EMULATED_API cudaError_t cudaMemset(void* devPtr, int value, size_t count);
HOLDFAST_EMULATED_API cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count,
                                                  cudaStream_t stream);
HOLDFAST_EMULATED_API cudaError_t cudaFuncSetAttribute(const void* func,
                                                       enum cudaFuncAttribute attr, int value);

// ---- As in C++ of the real header: default arguments and typed pointers

#ifndef HOLDFAST_EMULATED_NAMES
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event) {
  return cudaStreamWaitEvent(stream, event, 0);
}
inline cudaError_t cudaEventRecord(cudaEvent_t event) { return cudaEventRecord(event, nullptr); }
template <typename T>
cudaError_t cudaMalloc(T** devPtr, size_t size) {
  return cudaMalloc(reinterpret_cast<void**>(devPtr), size);
}
template <typename T>
cudaError_t cudaMallocAsync(T** devPtr, size_t size, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(devPtr), size, stream);
}
template <typename T>
cudaError_t cudaHostAlloc(T** ptr, size_t size, unsigned int flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(ptr), size, flags);
}
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*func)(Parameters...), cudaFuncAttribute attr, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(func), attr, value);
}
#endif

#endif  // HOLDFAST_TESTS_EMULATION_CUDA_RUNTIME_H_
