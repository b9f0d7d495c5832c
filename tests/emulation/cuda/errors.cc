// Names and texts of errors. The texts are this project's own.
#include <cuda_runtime.h>

namespace {

struct Text {
  cudaError_t error;
  const char *name, *text;
};

#define HF_ERROR(name, text) \
  { name, #name, text }
constexpr Text kTexts[] = {
    HF_ERROR(cudaSuccess, "no error"),
    HF_ERROR(cudaErrorInvalidValue, "invalid argument"),
    HF_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    HF_ERROR(cudaErrorInitializationError, "CUDA cannot be used in this process"),
    HF_ERROR(cudaErrorInvalidConfiguration, "invalid launch sizes"),
    HF_ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    HF_ERROR(cudaErrorInvalidMemcpyDirection, "invalid direction of a copy"),
    HF_ERROR(cudaErrorStubLibrary, "the driver library is a stub"),
    HF_ERROR(cudaErrorInsufficientDriver, "there is no driver, or it is older than the runtime"),
    HF_ERROR(cudaErrorDevicesUnavailable, "devices are busy or unavailable"),
    HF_ERROR(cudaErrorInvalidDeviceFunction, "no such device function"),
    HF_ERROR(cudaErrorNoDevice, "no CUDA device is visible"),
    HF_ERROR(cudaErrorInvalidDevice, "no such device"),
    HF_ERROR(cudaErrorNoKernelImageForDevice, "the kernels are not built for this device"),
    HF_ERROR(cudaErrorECCUncorrectable, "uncorrectable memory error"),
    HF_ERROR(cudaErrorUnsupportedPtxVersion, "the driver does not know this PTX"),
    HF_ERROR(cudaErrorContained, "a memory error was contained"),
    HF_ERROR(cudaErrorOperatingSystem, "a call of the operating system failed"),
    HF_ERROR(cudaErrorInvalidResourceHandle, "no such stream or event, or of another device"),
    HF_ERROR(cudaErrorNotReady, "the work is not complete yet"),
    HF_ERROR(cudaErrorIllegalAddress, "a kernel used an address that is not its own"),
    HF_ERROR(cudaErrorLaunchOutOfResources, "too many resources asked for by a launch"),
    HF_ERROR(cudaErrorLaunchTimeout, "a kernel ran too long"),
    HF_ERROR(cudaErrorAssert, "a kernel's assert failed"),
    HF_ERROR(cudaErrorHardwareStackError, "a kernel's stack overflowed"),
    HF_ERROR(cudaErrorIllegalInstruction, "a kernel met an illegal instruction"),
    HF_ERROR(cudaErrorMisalignedAddress, "a kernel used a misaligned address"),
    HF_ERROR(cudaErrorInvalidAddressSpace, "a kernel used an address of the wrong space"),
    HF_ERROR(cudaErrorInvalidPc, "a kernel's program counter is invalid"),
    HF_ERROR(cudaErrorLaunchFailure, "a kernel failed"),
    HF_ERROR(cudaErrorNotPermitted, "not permitted here"),
    HF_ERROR(cudaErrorNotSupported, "not supported"),
    HF_ERROR(cudaErrorSystemNotReady, "the system is not ready"),
    HF_ERROR(cudaErrorSystemDriverMismatch, "versions of the driver's parts differ"),
    HF_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef HF_ERROR

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  for (const Text& text : kTexts) {
    if (text.error == error) return text.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  for (const Text& text : kTexts) {
    if (text.error == error) return text.text;
  }
  return "unrecognized error code";
}
