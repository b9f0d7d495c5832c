// What the emulated GPUs say about themselves: the sizes of an H200.
#include <cstdio>
#include <cstring>

#include "tests/emulation/cuda/runtime.h"

using holdfast::emulation::GpuName;
using holdfast::emulation::Returned;
using holdfast::emulation::Runtime;

namespace {

constexpr int kMajor = 9, kMinor = 0, kMultiprocessors = 132, kThreadsPerBlock = 1024, kWarp = 32;
constexpr int kL2Bytes = 60 << 20, kSharedOptIn = 227 * 1024;

bool Exists(int device) { return device >= 0 && device < Runtime::Instance().device_count(); }
// GPU 0 is 0000:01:00.0, GPU 1 0000:02:00.0 ...
int BusId(int device) { return Runtime::Instance().gpu(device).physical + 1; }

}  // namespace

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  HF_ENTER();
  if (!Exists(device)) return Returned(cudaErrorInvalidDevice);
  switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kThreadsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = kWarp;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrPciBusId:
      *value = BusId(device);
      break;
    case cudaDevAttrPciDeviceId:
      *value = 0;
      break;
    case cudaDevAttrPciDomainId:
      *value = 0;
      break;
    case cudaDevAttrL2CacheSize:
      *value = kL2Bytes;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedOptIn;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      return Returned(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  HF_ENTER();
  if (!Exists(device)) return Returned(cudaErrorInvalidDevice);
  std::memset(prop, 0, sizeof *prop);
  std::snprintf(prop->name, sizeof prop->name, "emulated GPU");
  const int physical = Runtime::Instance().gpu(device).physical;
  std::memcpy(prop->uuid.bytes, &physical, sizeof physical);
  prop->totalGlobalMem = Runtime::Instance().memory_bytes();
  prop->sharedMemPerBlock = 48 * 1024;
  prop->sharedMemPerBlockOptin = kSharedOptIn;
  prop->regsPerBlock = 65'536;
  prop->warpSize = kWarp;
  prop->maxThreadsPerBlock = kThreadsPerBlock;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 0x7fffffff;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65'535;
  prop->major = kMajor;
  prop->minor = kMinor;
  prop->multiProcessorCount = kMultiprocessors;
  prop->pciBusID = BusId(device);
  prop->asyncEngineCount = 3;
  prop->unifiedAddressing = 1;
  prop->memoryBusWidth = 6144;
  prop->l2CacheSize = kL2Bytes;
  prop->memoryPoolsSupported = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int len, int device) {
  HF_ENTER();
  if (!Exists(device)) return Returned(cudaErrorInvalidDevice);
  const int needed = std::snprintf(text, static_cast<size_t>(len), "0000:%02x:00.0", BusId(device));
  return needed < len ? cudaSuccess : Returned(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize() {
  HF_ENTER();
  Runtime::Instance().DrainDevice(holdfast::emulation::CurrentDevice());
  HF_ENTER();
  return cudaSuccess;
}
