// --init-from: the first values of a fresh run from a safetensors file, in place of the random
// ones. Names are the model's (for gpt: those of GPT-2 on Hugging Face), with or without
// "transformer." in front. The file must have every tensor of the model and no other, except what
// such files carry along: causal masks (attn.bias, attn.masked_bias) and the head that is tied to
// wte.weight. Main thread only.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/models/model.h"
#include "runtime/session/state.h"

namespace holdfast {

// Does the file fit the model? kInvalidArgument lists what is missing, what is too much, and every
// shape that differs, tensor by tensor. Reads the header (and a tied head) only.
[[nodiscard]] absl::Status CheckInitFile(const std::string& path, const ModelSpec& spec);
// Overwrites the values of `state`, which must be fresh, and digests it anew. `digest`: the one
// that the run was begun with; a file with another is refused (kFailedPrecondition).
[[nodiscard]] absl::Status InitializeFrom(const std::string& path, const std::string& digest,
                                          State* state);

}  // namespace holdfast
