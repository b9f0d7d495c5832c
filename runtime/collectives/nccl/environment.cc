#include "runtime/collectives/nccl/environment.h"

#include <cstdlib>
#include <string_view>

#include "runtime/base/text.h"

namespace holdfast {

std::vector<NcclSetting> NcclSettings(bool loopback, const std::string& interface) {
  std::vector<NcclSetting> settings = {
      {"NCCL_COMM_BLOCKING", "0", true,
       "1 would override the non-blocking mode that every deadline here rests on"},
      {"NCCL_COMM_ID", "", true,
       "a fixed id would let members of two generations meet; each gets a fresh one"},
      {"NCCL_SOCKET_RETRY_CNT", "7", false,
       "connecting to a member that is gone fails after 3 s instead of 60 s"},
      {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "100", false, "the step of those retries"},
      {"NCCL_IB_TIMEOUT", "18", false,
       "a dead InfiniBand peer is an error after 8 s instead of 30 s"},
      {"NCCL_IB_RETRY_CNT", "7", false, "the retries of that time"},
      {"NCCL_IB_RETURN_ASYNC_EVENTS", "1", false, "an adapter's own errors end the operation"},
      {"NCCL_RAS_ENABLE", "0", false, "1 opens an unauthenticated text port"},
      {"NCCL_LAUNCH_RACE_FATAL", "1", false,
       "operations launched in another order than declared are an error, not a hang"},
      {"NCCL_DEBUG", "WARN", false, "the cause of an error is printed where it happens"},
  };
  if (loopback) {
    settings.push_back(
        {"NCCL_SOCKET_IFNAME", "=lo", false,
         "all workers are on this host: its sockets stay on the loopback interface"});
  } else if (!interface.empty()) {
    settings.push_back({"NCCL_SOCKET_IFNAME", Cat("=", interface), false,
                        "the network interface that was asked for"});
  }
  return settings;
}

std::vector<std::string> PinNcclEnvironment(const std::vector<NcclSetting>& settings) {
  std::vector<std::string> replaced;
  for (const NcclSetting& setting : settings) {
    const char* found = std::getenv(setting.name.c_str());
    if (found != nullptr && (!setting.enforced || setting.value == found)) continue;
    if (found != nullptr) {
      replaced.push_back(Cat(setting.name, "=", found,
                             setting.value.empty() ? " is taken out of the environment"
                                                   : Cat(" is replaced by ", setting.value),
                             ": ", setting.why));
    }
    if (setting.value.empty()) {
      unsetenv(setting.name.c_str());
    } else {
      setenv(setting.name.c_str(), setting.value.c_str(), 1);
    }
  }
  return replaced;
}

}  // namespace holdfast
