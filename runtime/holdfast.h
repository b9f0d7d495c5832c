// Everything that a trainer of one's own needs, in one header. Installed as <holdfast/holdfast.h>:
//   find_package(Holdfast REQUIRED)
//   target_link_libraries(mine Holdfast::holdfast)
#pragma once

#include "kernels/device.h"       // memory and streams
#include "kernels/ops.h"          // products, layers, losses: the operations of the built-in models
#include "runtime/base/digest.h"  // Hash64, Mix64: fingerprints and draws that repeat
#include "runtime/base/status.h"  // HF_RETURN_IF_ERROR, HF_ASSIGN_OR_RETURN
#include "runtime/cli/main.h"     // Main
#include "runtime/models/model.h"     // Model, DataSource, Trainer: read this one
#include "runtime/models/settings.h"  // the configuration
