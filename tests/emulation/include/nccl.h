// The emulated build's nccl.h: what the project calls, and no more, under the names, with the
// values and layouts of NCCL 2.28.9. What they do here is said in
// tests/emulation/nccl/comm.h. headers_check.cc holds it against the real header where that is
// installed.
#ifndef HOLDFAST_TESTS_EMULATION_NCCL_H_
#define HOLDFAST_TESTS_EMULATION_NCCL_H_

#include <cuda_runtime.h>
#include <limits.h>
#include <stddef.h>

#ifndef HOLDFAST_EMULATED_NAMES
// clang-format off
#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X,Y,Z) (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
// clang-format on
#endif

typedef struct ncclComm* ncclComm_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclNumResults = 8
} ncclResult_t;

typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00

typedef struct ncclConfig_v22800 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
} ncclConfig_t;

#ifndef HOLDFAST_EMULATED_NAMES
// clang-format off
#define NCCL_CONFIG_INITIALIZER                                                                 \
  { sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),          \
    NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,  \
    NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR,  \
    NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,  \
    NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT }
// clang-format on
#endif

HOLDFAST_EMULATED_API ncclResult_t ncclGetVersion(int* version);
HOLDFAST_EMULATED_API const char* ncclGetErrorString(ncclResult_t result);
HOLDFAST_EMULATED_API const char* ncclGetLastError(ncclComm_t comm);

HOLDFAST_EMULATED_API ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
HOLDFAST_EMULATED_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks,
                                                          ncclUniqueId commId, int rank,
                                                          ncclConfig_t* config);
HOLDFAST_EMULATED_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks,
                                                    ncclUniqueId commId, int rank);
HOLDFAST_EMULATED_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
HOLDFAST_EMULATED_API ncclResult_t ncclCommFinalize(ncclComm_t comm);
HOLDFAST_EMULATED_API ncclResult_t ncclCommDestroy(ncclComm_t comm);
HOLDFAST_EMULATED_API ncclResult_t ncclCommAbort(ncclComm_t comm);
HOLDFAST_EMULATED_API ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
HOLDFAST_EMULATED_API ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList,
                                                  int excludeRanksCount, ncclComm_t* newcomm,
                                                  ncclConfig_t* config, int shrinkFlags);
HOLDFAST_EMULATED_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
HOLDFAST_EMULATED_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
HOLDFAST_EMULATED_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);

HOLDFAST_EMULATED_API ncclResult_t ncclGroupStart(void);
HOLDFAST_EMULATED_API ncclResult_t ncclGroupEnd(void);

HOLDFAST_EMULATED_API ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                                                 ncclDataType_t datatype, ncclRedOp_t op,
                                                 ncclComm_t comm, cudaStream_t stream);
HOLDFAST_EMULATED_API ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                                              ncclDataType_t datatype, ncclRedOp_t op, int root,
                                              ncclComm_t comm, cudaStream_t stream);
HOLDFAST_EMULATED_API ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff,
                                                     size_t recvcount, ncclDataType_t datatype,
                                                     ncclRedOp_t op, ncclComm_t comm,
                                                     cudaStream_t stream);
HOLDFAST_EMULATED_API ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff,
                                                 size_t sendcount, ncclDataType_t datatype,
                                                 ncclComm_t comm, cudaStream_t stream);
HOLDFAST_EMULATED_API ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                                                 ncclDataType_t datatype, int root, ncclComm_t comm,
                                                 cudaStream_t stream);
HOLDFAST_EMULATED_API ncclResult_t ncclSend(const void* sendbuff, size_t count,
                                            ncclDataType_t datatype, int peer, ncclComm_t comm,
                                            cudaStream_t stream);
HOLDFAST_EMULATED_API ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype,
                                            int peer, ncclComm_t comm, cudaStream_t stream);

#endif  // HOLDFAST_TESTS_EMULATION_NCCL_H_
