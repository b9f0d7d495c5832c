// HOLDFAST_HD marks a function that is compiled for the host and, under nvcc, for the device too:
// the same source for both, so that results promised equal are equal by construction. Under g++ it
// is nothing.
#pragma once

#ifdef __CUDACC__
#define HOLDFAST_HD __host__ __device__
#else
#define HOLDFAST_HD
#endif
