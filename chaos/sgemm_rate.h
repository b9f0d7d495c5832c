// The rate of fp32 matrix products on this machine now, in one thread: the yardstick for a training
// step.
#pragma once

namespace holdfast::chaos {

// FLOP/s of the best of a few sizes (the demo model's own products, and squares), each the fastest
// of several runs. Takes under a second.
double SgemmFlopsPerSecond();
// One reading of about 10 ms, of 512 x 512 x 512: to be taken in turns with what is held against
// it.
double SgemmSampleFlopsPerSecond();

}  // namespace holdfast::chaos
