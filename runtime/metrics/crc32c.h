// CRC-32C (Castagnoli, RFC 3720 appendix B.4), as TFRecord files use it. Pure: any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace holdfast::metrics {

uint32_t Crc32c(std::string_view bytes);
// The form in which TFRecord stores it, so that a checksum of data that holds checksums is no
// special case (tensorflow/core/lib/hash/crc32c.h).
uint32_t MaskedCrc32c(std::string_view bytes);

}  // namespace holdfast::metrics
