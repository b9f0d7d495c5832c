// Compiled where the CUDA toolkit and NCCL are installed: the declarations of the emulated build
// agree with the real headers. The real ones are read into the global namespace, the emulated ones
// into a namespace of their own; macros must be equal text, or the compiler says so.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define HOLDFAST_EMULATED_NAMES
#define HOLDFAST_EMULATED_API
namespace emulated {
#include "tests/emulation/include/cublasLt.h"
#include "tests/emulation/include/cuda_runtime.h"
#include "tests/emulation/include/nccl.h"
}  // namespace emulated

namespace {

// The type that the real header has under the same name.
template <typename T>
struct Real {
  using Type = T;
};
#define HF_SAME(name)                                                                         \
  template <>                                                                                 \
  struct Real<emulated::name> {                                                               \
    using Type = ::name;                                                                      \
  };                                                                                          \
  static_assert(                                                                              \
      sizeof(emulated::name) == sizeof(::name) && alignof(emulated::name) == alignof(::name), \
      #name);
#define HF_HANDLE(name)         \
  template <>                   \
  struct Real<emulated::name> { \
    using Type = ::name;        \
  };
HF_HANDLE(cudaStream_t)
HF_HANDLE(cudaEvent_t)
HF_HANDLE(cudaMemPool_t)
HF_HANDLE(ncclComm_t)
HF_HANDLE(cublasLtHandle_t)
HF_SAME(cudaError)
HF_SAME(cudaDeviceProp)
HF_SAME(cudaDeviceAttr)
HF_SAME(cudaUUID_t)
HF_SAME(cudaMemcpyKind)
HF_SAME(cudaMemPoolAttr)
HF_SAME(cudaFuncAttribute)
HF_SAME(ncclUniqueId)
HF_SAME(ncclConfig_t)
HF_SAME(ncclResult_t)
HF_SAME(ncclRedOp_t)
HF_SAME(ncclDataType_t)
HF_SAME(cudaDataType)
HF_SAME(cublasStatus_t)
HF_SAME(cublasOperation_t)
HF_SAME(cublasComputeType_t)
HF_SAME(cublasLtMatrixLayoutOpaque_t)
HF_SAME(cublasLtMatmulAlgo_t)
HF_SAME(cublasLtMatmulDescOpaque_t)
HF_SAME(cublasLtMatmulPreferenceOpaque_t)
HF_SAME(cublasLtMatmulHeuristicResult_t)
HF_SAME(cublasLtPointerMode_t)
HF_SAME(cublasLtOrder_t)
HF_SAME(cublasLtMatrixLayoutAttribute_t)
HF_SAME(cublasLtMatmulDescAttributes_t)
HF_SAME(cublasLtEpilogue_t)
HF_SAME(cublasLtReductionScheme_t)
HF_SAME(cublasLtMatmulPreferenceAttributes_t)
HF_SAME(cublasLtMatmulAlgoConfigAttributes_t)

template <typename T>
struct Real<const T> {
  using Type = const typename Real<T>::Type;
};
template <typename T>
struct Real<T*> {
  using Type = typename Real<T>::Type*;
};
template <typename R, typename... P>
struct Real<R(P...)> {
  using Type = typename Real<R>::Type(typename Real<P>::Type...);
};

// Fails to compile unless the real header has a function of this name and signature.
#define HF_FUNCTION(name) \
  [[maybe_unused]] constexpr Real<decltype(emulated::name)>::Type* k_##name = &::name;
HF_FUNCTION(cudaGetErrorName)
HF_FUNCTION(cudaGetErrorString)
HF_FUNCTION(cudaGetLastError)
HF_FUNCTION(cudaPeekAtLastError)
HF_FUNCTION(cudaGetDeviceCount)
HF_FUNCTION(cudaSetDevice)
HF_FUNCTION(cudaGetDevice)
HF_FUNCTION(cudaDeviceGetAttribute)
HF_FUNCTION(cudaGetDeviceProperties)
HF_FUNCTION(cudaDeviceGetPCIBusId)
HF_FUNCTION(cudaDriverGetVersion)
HF_FUNCTION(cudaRuntimeGetVersion)
HF_FUNCTION(cudaDeviceSynchronize)
HF_FUNCTION(cudaDeviceGetStreamPriorityRange)
HF_FUNCTION(cudaStreamCreate)
HF_FUNCTION(cudaStreamCreateWithFlags)
HF_FUNCTION(cudaStreamCreateWithPriority)
HF_FUNCTION(cudaStreamGetPriority)
HF_FUNCTION(cudaStreamDestroy)
HF_FUNCTION(cudaStreamQuery)
HF_FUNCTION(cudaStreamSynchronize)
HF_FUNCTION(cudaStreamWaitEvent)
HF_FUNCTION(cudaLaunchHostFunc)
HF_FUNCTION(cudaEventCreate)
HF_FUNCTION(cudaEventCreateWithFlags)
HF_FUNCTION(cudaEventDestroy)
HF_FUNCTION(cudaEventRecord)
HF_FUNCTION(cudaEventQuery)
HF_FUNCTION(cudaEventSynchronize)
HF_FUNCTION(cudaEventElapsedTime)
HF_FUNCTION(cudaMalloc)
HF_FUNCTION(cudaFree)
HF_FUNCTION(cudaMallocAsync)
HF_FUNCTION(cudaFreeAsync)
HF_FUNCTION(cudaMallocHost)
HF_FUNCTION(cudaHostAlloc)
HF_FUNCTION(cudaFreeHost)
HF_FUNCTION(cudaMemGetInfo)
HF_FUNCTION(cudaDeviceGetDefaultMemPool)
HF_FUNCTION(cudaMemPoolSetAttribute)
HF_FUNCTION(cudaMemPoolGetAttribute)
HF_FUNCTION(cudaMemPoolTrimTo)
HF_FUNCTION(cudaMemcpy)
HF_FUNCTION(cudaMemcpyAsync)
HF_FUNCTION(cudaMemset)
HF_FUNCTION(cudaMemsetAsync)
HF_FUNCTION(cudaFuncSetAttribute)
HF_FUNCTION(ncclGetVersion)
HF_FUNCTION(ncclGetErrorString)
HF_FUNCTION(ncclGetLastError)
HF_FUNCTION(ncclGetUniqueId)
HF_FUNCTION(ncclCommInitRankConfig)
HF_FUNCTION(ncclCommInitRank)
HF_FUNCTION(ncclCommGetAsyncError)
HF_FUNCTION(ncclCommFinalize)
HF_FUNCTION(ncclCommDestroy)
HF_FUNCTION(ncclCommAbort)
HF_FUNCTION(ncclCommRevoke)
HF_FUNCTION(ncclCommShrink)
HF_FUNCTION(ncclCommCount)
HF_FUNCTION(ncclCommCuDevice)
HF_FUNCTION(ncclCommUserRank)
HF_FUNCTION(ncclGroupStart)
HF_FUNCTION(ncclGroupEnd)
HF_FUNCTION(ncclAllReduce)
HF_FUNCTION(ncclReduce)
HF_FUNCTION(ncclReduceScatter)
HF_FUNCTION(ncclAllGather)
HF_FUNCTION(ncclBroadcast)
HF_FUNCTION(ncclSend)
HF_FUNCTION(ncclRecv)
HF_FUNCTION(cublasLtCreate)
HF_FUNCTION(cublasLtDestroy)
HF_FUNCTION(cublasLtGetVersion)
HF_FUNCTION(cublasLtGetStatusName)
HF_FUNCTION(cublasLtGetStatusString)
HF_FUNCTION(cublasLtMatmulDescCreate)
HF_FUNCTION(cublasLtMatmulDescDestroy)
HF_FUNCTION(cublasLtMatmulDescSetAttribute)
HF_FUNCTION(cublasLtMatrixLayoutCreate)
HF_FUNCTION(cublasLtMatrixLayoutDestroy)
HF_FUNCTION(cublasLtMatrixLayoutSetAttribute)
HF_FUNCTION(cublasLtMatmulPreferenceCreate)
HF_FUNCTION(cublasLtMatmulPreferenceDestroy)
HF_FUNCTION(cublasLtMatmulPreferenceSetAttribute)
HF_FUNCTION(cublasLtMatmulAlgoGetHeuristic)
HF_FUNCTION(cublasLtMatmulAlgoCheck)
HF_FUNCTION(cublasLtMatmulAlgoConfigGetAttribute)
HF_FUNCTION(cublasLtMatmul)

#define HF_OFFSET(type, field)                                                \
  static_assert(offsetof(emulated::type, field) == offsetof(::type, field) && \
                    sizeof(emulated::type::field) == sizeof(::type::field),   \
                #type "." #field);
#define HF_PROP(field) HF_OFFSET(cudaDeviceProp, field)
HF_PROP(name)
HF_PROP(uuid)
HF_PROP(totalGlobalMem)
HF_PROP(sharedMemPerBlock) HF_PROP(regsPerBlock) HF_PROP(warpSize) HF_PROP(memPitch) HF_PROP(maxThreadsPerBlock) HF_PROP(
    maxThreadsDim) HF_PROP(maxGridSize) HF_PROP(totalConstMem) HF_PROP(major) HF_PROP(minor) HF_PROP(multiProcessorCount)
    HF_PROP(pciBusID) HF_PROP(pciDeviceID) HF_PROP(pciDomainID) HF_PROP(asyncEngineCount) HF_PROP(unifiedAddressing) HF_PROP(
        memoryBusWidth) HF_PROP(l2CacheSize) HF_PROP(sharedMemPerBlockOptin) HF_PROP(memoryPoolsSupported)
#define HF_CONFIG(field) HF_OFFSET(ncclConfig_t, field)
        HF_CONFIG(size) HF_CONFIG(magic) HF_CONFIG(version) HF_CONFIG(blocking) HF_CONFIG(
            cgaClusterSize) HF_CONFIG(minCTAs) HF_CONFIG(maxCTAs) HF_CONFIG(netName) HF_CONFIG(splitShare)
            HF_CONFIG(trafficClass) HF_CONFIG(commName) HF_CONFIG(collnetEnable) HF_CONFIG(CTAPolicy) HF_CONFIG(
                shrinkShare) HF_CONFIG(nvlsCTAs) HF_CONFIG(nChannelsPerNetPeer) HF_CONFIG(nvlinkCentricSched)
#define HF_ALGO(field) HF_OFFSET(cublasLtMatmulHeuristicResult_t, field)
                HF_ALGO(algo) HF_ALGO(workspaceSize) HF_ALGO(state) HF_ALGO(wavesCount)

#define HF_VALUE(name) static_assert(int64_t{emulated::name} == int64_t{::name}, #name);
                    HF_VALUE(
                        cudaSuccess) HF_VALUE(cudaErrorInvalidValue) HF_VALUE(cudaErrorMemoryAllocation) HF_VALUE(cudaErrorInitializationError) HF_VALUE(cudaErrorInvalidConfiguration) HF_VALUE(cudaErrorInvalidDevicePointer) HF_VALUE(cudaErrorInvalidMemcpyDirection) HF_VALUE(cudaErrorStubLibrary) HF_VALUE(cudaErrorInsufficientDriver) HF_VALUE(cudaErrorDevicesUnavailable) HF_VALUE(cudaErrorInvalidDeviceFunction) HF_VALUE(cudaErrorNoDevice) HF_VALUE(cudaErrorInvalidDevice) HF_VALUE(cudaErrorNoKernelImageForDevice) HF_VALUE(cudaErrorECCUncorrectable) HF_VALUE(cudaErrorUnsupportedPtxVersion) HF_VALUE(cudaErrorContained) HF_VALUE(cudaErrorOperatingSystem)
                        HF_VALUE(cudaErrorInvalidResourceHandle) HF_VALUE(cudaErrorNotReady) HF_VALUE(cudaErrorIllegalAddress) HF_VALUE(cudaErrorLaunchOutOfResources) HF_VALUE(
                            cudaErrorLaunchTimeout) HF_VALUE(cudaErrorAssert) HF_VALUE(cudaErrorHardwareStackError)
                            HF_VALUE(cudaErrorIllegalInstruction) HF_VALUE(cudaErrorMisalignedAddress) HF_VALUE(cudaErrorInvalidAddressSpace) HF_VALUE(cudaErrorInvalidPc) HF_VALUE(
                                cudaErrorLaunchFailure) HF_VALUE(cudaErrorNotPermitted) HF_VALUE(cudaErrorNotSupported) HF_VALUE(cudaErrorSystemNotReady) HF_VALUE(cudaErrorSystemDriverMismatch)
                                HF_VALUE(cudaErrorUnknown) HF_VALUE(cudaDevAttrMaxThreadsPerBlock) HF_VALUE(cudaDevAttrWarpSize) HF_VALUE(cudaDevAttrMultiProcessorCount) HF_VALUE(cudaDevAttrPciBusId) HF_VALUE(cudaDevAttrPciDeviceId) HF_VALUE(cudaDevAttrL2CacheSize) HF_VALUE(cudaDevAttrPciDomainId) HF_VALUE(cudaDevAttrComputeCapabilityMajor) HF_VALUE(cudaDevAttrComputeCapabilityMinor) HF_VALUE(cudaDevAttrMaxSharedMemoryPerBlockOptin) HF_VALUE(cudaDevAttrMemoryPoolsSupported) HF_VALUE(cudaMemcpyHostToHost) HF_VALUE(cudaMemcpyHostToDevice) HF_VALUE(cudaMemcpyDeviceToHost) HF_VALUE(cudaMemcpyDeviceToDevice) HF_VALUE(cudaMemcpyDefault) HF_VALUE(cudaMemPoolReuseFollowEventDependencies) HF_VALUE(cudaMemPoolReuseAllowOpportunistic) HF_VALUE(cudaMemPoolReuseAllowInternalDependencies) HF_VALUE(cudaMemPoolAttrReleaseThreshold) HF_VALUE(cudaMemPoolAttrReservedMemCurrent) HF_VALUE(cudaMemPoolAttrReservedMemHigh) HF_VALUE(cudaMemPoolAttrUsedMemCurrent) HF_VALUE(cudaMemPoolAttrUsedMemHigh) HF_VALUE(cudaFuncAttributeMaxDynamicSharedMemorySize) HF_VALUE(cudaFuncAttributePreferredSharedMemoryCarveout) HF_VALUE(ncclSuccess) HF_VALUE(ncclUnhandledCudaError) HF_VALUE(ncclSystemError) HF_VALUE(ncclInternalError) HF_VALUE(ncclInvalidArgument) HF_VALUE(
                                    ncclInvalidUsage) HF_VALUE(ncclRemoteError) HF_VALUE(ncclInProgress) HF_VALUE(ncclNumResults) HF_VALUE(ncclSum)
                                    HF_VALUE(ncclProd) HF_VALUE(ncclMax) HF_VALUE(ncclMin) HF_VALUE(ncclAvg) HF_VALUE(ncclNumOps) HF_VALUE(
                                        ncclMaxRedOp) HF_VALUE(ncclInt8) HF_VALUE(ncclChar) HF_VALUE(ncclUint8) HF_VALUE(ncclInt32)
                                        HF_VALUE(ncclInt) HF_VALUE(ncclUint32) HF_VALUE(ncclInt64) HF_VALUE(
                                            ncclUint64) HF_VALUE(ncclFloat16) HF_VALUE(ncclHalf) HF_VALUE(ncclFloat32) HF_VALUE(ncclFloat)
                                            HF_VALUE(ncclFloat64) HF_VALUE(ncclDouble) HF_VALUE(ncclBfloat16) HF_VALUE(
                                                ncclFloat8e4m3) HF_VALUE(ncclFloat8e5m2) HF_VALUE(ncclNumTypes)
                                                HF_VALUE(CUDA_R_32F) HF_VALUE(CUDA_R_64F) HF_VALUE(CUDA_R_16F) HF_VALUE(
                                                    CUDA_R_16BF) HF_VALUE(CUBLAS_STATUS_SUCCESS) HF_VALUE(CUBLAS_STATUS_NOT_INITIALIZED)
                                                    HF_VALUE(CUBLAS_STATUS_ALLOC_FAILED) HF_VALUE(CUBLAS_STATUS_INVALID_VALUE) HF_VALUE(
                                                        CUBLAS_STATUS_ARCH_MISMATCH) HF_VALUE(CUBLAS_STATUS_MAPPING_ERROR)
                                                        HF_VALUE(CUBLAS_STATUS_EXECUTION_FAILED) HF_VALUE(
                                                            CUBLAS_STATUS_INTERNAL_ERROR) HF_VALUE(CUBLAS_STATUS_NOT_SUPPORTED)
                                                            HF_VALUE(CUBLAS_STATUS_LICENSE_ERROR) HF_VALUE(
                                                                CUBLAS_OP_N) HF_VALUE(CUBLAS_OP_T) HF_VALUE(CUBLAS_OP_C)
                                                                HF_VALUE(CUBLAS_COMPUTE_16F) HF_VALUE(
                                                                    CUBLAS_COMPUTE_32F) HF_VALUE(CUBLAS_COMPUTE_32F_PEDANTIC)
                                                                    HF_VALUE(CUBLAS_COMPUTE_64F) HF_VALUE(
                                                                        CUBLAS_COMPUTE_32F_FAST_16F) HF_VALUE(CUBLAS_COMPUTE_32F_FAST_16BF)
                                                                        HF_VALUE(CUBLAS_COMPUTE_32F_FAST_TF32) HF_VALUE(
                                                                            CUBLASLT_POINTER_MODE_HOST) HF_VALUE(CUBLASLT_POINTER_MODE_DEVICE)
                                                                            HF_VALUE(CUBLASLT_ORDER_COL) HF_VALUE(
                                                                                CUBLASLT_ORDER_ROW)
                                                                                HF_VALUE(CUBLASLT_MATRIX_LAYOUT_TYPE) HF_VALUE(
                                                                                    CUBLASLT_MATRIX_LAYOUT_ORDER) HF_VALUE(CUBLASLT_MATRIX_LAYOUT_ROWS) HF_VALUE(CUBLASLT_MATRIX_LAYOUT_COLS) HF_VALUE(CUBLASLT_MATRIX_LAYOUT_LD) HF_VALUE(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) HF_VALUE(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) HF_VALUE(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) HF_VALUE(CUBLASLT_MATMUL_DESC_SCALE_TYPE) HF_VALUE(CUBLASLT_MATMUL_DESC_POINTER_MODE) HF_VALUE(CUBLASLT_MATMUL_DESC_TRANSA) HF_VALUE(CUBLASLT_MATMUL_DESC_TRANSB) HF_VALUE(CUBLASLT_MATMUL_DESC_TRANSC) HF_VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE) HF_VALUE(CUBLASLT_MATMUL_DESC_BIAS_POINTER) HF_VALUE(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE) HF_VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER)
                                                                                    HF_VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) HF_VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE) HF_VALUE(
                                                                                        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE) HF_VALUE(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)
                                                                                        HF_VALUE(CUBLASLT_EPILOGUE_DEFAULT) HF_VALUE(CUBLASLT_EPILOGUE_RELU) HF_VALUE(CUBLASLT_EPILOGUE_BIAS) HF_VALUE(CUBLASLT_EPILOGUE_RELU_BIAS) HF_VALUE(CUBLASLT_EPILOGUE_GELU) HF_VALUE(CUBLASLT_EPILOGUE_GELU_BIAS) HF_VALUE(CUBLASLT_EPILOGUE_GELU_AUX) HF_VALUE(CUBLASLT_EPILOGUE_GELU_AUX_BIAS) HF_VALUE(CUBLASLT_EPILOGUE_DGELU) HF_VALUE(CUBLASLT_EPILOGUE_DGELU_BGRAD) HF_VALUE(CUBLASLT_EPILOGUE_BGRADA) HF_VALUE(CUBLASLT_EPILOGUE_BGRADB) HF_VALUE(CUBLASLT_REDUCTION_SCHEME_NONE) HF_VALUE(
                                                                                            CUBLASLT_REDUCTION_SCHEME_INPLACE) HF_VALUE(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) HF_VALUE(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) HF_VALUE(CUBLASLT_REDUCTION_SCHEME_MASK)
                                                                                            HF_VALUE(CUBLASLT_MATMUL_PREF_SEARCH_MODE) HF_VALUE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) HF_VALUE(
                                                                                                CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) HF_VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
                                                                                                HF_VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) HF_VALUE(
                                                                                                    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES)
                                                                                                    HF_VALUE(
                                                                                                        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
                                                                                                        HF_VALUE(
                                                                                                            CUBLASLT_ALGO_CONFIG_ID)
                                                                                                            HF_VALUE(
                                                                                                                CUBLASLT_ALGO_CONFIG_SPLITK_NUM)
                                                                                                                HF_VALUE(
                                                                                                                    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)
}  // namespace
