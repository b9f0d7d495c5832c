#include "runtime/supervisor/settle_bits.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/models/product.h"
#include "runtime/models/safetensors.h"
#include "runtime/supervisor/exit_status.h"
#include "runtime/supervisor/settle_device.h"

namespace holdfast {
namespace {

constexpr int64_t kGpuTokens = 16'384;

absl::StatusOr<std::string> DigestOf(const std::string& path) {
  HF_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  return file->Digest();
}

absl::Status SettleInit(const Config* recorded, Config* wanted) {
  wanted->init_digest.clear();
  if (recorded != nullptr) {
    std::error_code error;
    const bool same = wanted->init_from.empty() || wanted->init_from == recorded->init_from;
    if (same && (wanted->init_from.empty() || !std::filesystem::exists(wanted->init_from, error))) {
      wanted->init_from = recorded->init_from;
      wanted->init_digest = recorded->init_digest;
      return absl::OkStatus();
    }
  }
  if (wanted->init_from.empty()) return absl::OkStatus();
  const auto digest = DigestOf(wanted->init_from);
  if (!digest.ok()) return WithExit(Annotate(digest.status(), "--init-from"), ExitCode::kData);
  wanted->init_digest = *digest;
  return absl::OkStatus();
}

}  // namespace

absl::Status SettleBits(const Config* recorded, Config* wanted, std::vector<std::string>* notes) {
  HF_RETURN_IF_ERROR(SettleDevice(recorded, wanted, notes));
  const bool gpu = wanted->device == "cuda";
  if (wanted->micro_batch_size == 0 && recorded != nullptr)
    wanted->micro_batch_size = recorded->micro_batch_size;
  if (wanted->micro_batch_size == 0) {
    // On a GPU each conversion to fixed point should have much work behind it.
    wanted->micro_batch_size =
        gpu ? (kGpuTokens + wanted->context - 1) / wanted->context : Config().micro_batch_size;
  }
  const bool open = wanted->precision == "auto" || wanted->precision == "default";
  if (open && recorded != nullptr) wanted->precision = recorded->precision;
  if (wanted->precision == "default") wanted->precision = gpu ? "bf16" : "fp32";
  if (wanted->precision == "auto" && gpu) wanted->precision = "bf16";
  if (wanted->precision == "auto") {
    const bool built_in = wanted->model == "gpt" || wanted->model == "mlp";
    std::string why = "a model of your own decides by itself";
    const bool faster =
        built_in && Bf16IsFaster(wanted->micro_batch_size * wanted->context, wanted->embed, &why);
    wanted->precision = faster ? "bf16" : "fp32";
    notes->push_back(
        Cat("precision auto: ", wanted->precision, " (", why, "); it stays with the run"));
  }
  return SettleInit(recorded, wanted);
}

std::string PrecisionInRecord(std::string_view status_json) {
  const auto json = nlohmann::json::parse(status_json, nullptr, false);
  if (!json.is_object() || !json.contains("settings") || !json["settings"].is_string()) return "";
  const std::string settings = json["settings"];
  for (const char* precision : {"fp32", "bf16", "fp16", "tf32"}) {
    if (settings.find(Cat("precision = \"", precision, "\"\n")) != std::string::npos)
      return precision;
  }
  return "";
}

}  // namespace holdfast
