#include <chrono>
#include <thread>

#include <nlohmann/json.hpp>

#include "rendezvous/membership.h"
#include "rendezvous/outage.h"
#include "rendezvous/redis_store.h"
#include "runtime/base/digest.h"
#include "runtime/base/status.h"

namespace holdfast::rendezvous {
namespace {

using Json = nlohmann::json;

constexpr int64_t kInsistMs = 5000;

bool Hopeless(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnauthenticated ||
         status.code() == absl::StatusCode::kFailedPrecondition;
}

Json StatusOf(const Record& record, const std::string& id) {
  const auto it = record.status.find(id);
  Json json = it == record.status.end() ? Json() : Json::parse(it->second, nullptr, false);
  return json.is_object() ? json : Json::object();
}

Json MemberJson(const Record& record, const Member& m, int rank) {
  Json json = StatusOf(record, m.id);
  json["id"] = m.id;
  json["rank"] = rank;
  json["machine"] = m.machine;
  json["slot"] = m.slot;
  json["address"] = Cat(m.address, ":", m.port);
  json["confirmed"] = record.confirmed.count(m.id) > 0;
  const auto lease = record.lease_left_ms.find(m.id);
  json["lease_ms"] = lease == record.lease_left_ms.end() ? 0 : lease->second;
  const auto death = record.deaths.find(m.id);
  json["gone"] = death == record.deaths.end() ? Json() : Json(death->second);
  return json;
}

Json RecordJson(const Record& record, std::string_view run) {
  Json json = {{"run", std::string(run)},
               {"exists", record.exists},
               {"store", record.store_id},
               {"members", Json::array()},
               {"waiting", Json::array()}};
  json["finished"] = record.finished ? Json{{"step", record.finished_step},
                                            {"state_digest", Hex64(record.finished_digest)}}
                                     : Json();
  if (!record.exists) return json;
  json["uuid"] = record.uuid;
  json["trusted"] = record.founded_at == record.store_id;
  json["generation"] = record.generation;
  json["round_open"] = record.round > record.generation;
  json["source_step"] = record.sealed.step;
  json["note"] = record.sealed.note;
  json["settings"] = record.sealed.fingerprint_text;  // what a joiner must equal
  json["stop"] = record.stop_id.empty() ? Json() : Json(record.stop_reason);
  int rank = 0;
  for (const Member& m : record.sealed.members)
    json["members"].push_back(MemberJson(record, m, rank++));
  for (const auto& [id, w] : record.joins) {
    Json waiting = StatusOf(record, id);
    waiting["id"] = id;
    waiting["machine"] = w.machine;
    waiting["slot"] = w.slot;
    waiting["reason"] = w.reason;
    const auto lease = record.lease_left_ms.find(id);
    waiting["lease_ms"] = lease == record.lease_left_ms.end() ? 0 : lease->second;
    json["waiting"].push_back(std::move(waiting));
  }
  return json;
}

class ObserverImpl : public Observer {
 public:
  explicit ObserverImpl(const MembershipOptions& options)
      : options_(options), back_off_(Hash64(Cat(options.machine, options.pid)), 20, 500) {
    RedisStoreOptions s;
    s.endpoint = {options.redis_host,     options.redis_port, options.redis_user,
                  options.redis_password, options.connect_ms, options.command_ms};
    s.run = options.run;
    s.lease_ms = options.lease_ms;
    s.redis_outage_ms = options.redis_outage_ms;
    s.key_ttl_ms = options.key_ttl_ms;
    store_ = MakeRedisStore(s);
  }

  absl::Status Open(Deadline deadline) {
    BackOff back_off(Hash64(Cat(options_.machine, options_.pid), 1), 50, 1000);
    int64_t last_line_ms = BootMs();
    while (true) {
      const absl::Status status = store_->Read("", false).status();
      if (status.ok() || Hopeless(status)) return status;
      if (deadline.passed())
        return absl::UnavailableError(Cat(status.message(), " (gave up waiting for it)"));
      if (BootMs() - last_line_ms >= 1000) {
        last_line_ms = BootMs();
        LogWarning(status.message(), "; trying again");
      }
      Pause(back_off.NextMs(), deadline);
    }
  }

  absl::Status CertifyDeath(std::string_view member_id, std::string_view how) override {
    return Change([&](const Record&, const Fence& fence) {
      return store_->Certify(fence, {std::string(member_id)}, how);
    });
  }

  absl::Status CertifyMachine(std::string_view machine, std::string_view how) override {
    return Change([&](const Record& record, const Fence& fence) {
      return store_->Certify(fence, IdsOf(record, machine), how);
    });
  }

  absl::Status RequestStop(std::string_view reason) override {
    const std::string stop_id = Hex64(RandomNonce());
    bool found = false;
    HF_RETURN_IF_ERROR(Change([&](const Record&, const Fence& fence) {
      found = true;
      return store_->Stop(fence, stop_id, reason);
    }));
    if (found) return absl::OkStatus();
    return absl::NotFoundError(
        Cat("Redis knows no run '", options_.run, "' that could be stopped"));
  }

  absl::StatusOr<std::string> StatusJson() override {
    HF_ASSIGN_OR_RETURN(const Record record, Read(true));
    return RecordJson(record, options_.run).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  absl::Status CleanUp(std::string_view machine) override {
    HF_RETURN_IF_ERROR(CertifyMachine(machine, "its supervisor has ended"));
    return Change([&](const Record& record, const Fence& fence) {
      return store_->CleanUp(fence, IdsOf(record, machine));
    });
  }

 private:
  static std::vector<std::string> IdsOf(const Record& record, std::string_view machine) {
    std::vector<std::string> ids;
    for (const Member& m : record.sealed.members) {
      if (m.machine == machine) ids.push_back(m.id);
    }
    for (const auto& [id, w] : record.joins) {
      if (w.machine == machine && record.FindMember(id) == nullptr) ids.push_back(id);
    }
    return ids;
  }

  void Pause(int64_t ms, Deadline deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(ms, deadline.left_ms() + 1)));
  }

  absl::StatusOr<Record> Read(bool with_status) {
    const Deadline deadline = Deadline::After(kInsistMs);
    while (true) {
      absl::StatusOr<Record> record = store_->Read("", with_status);
      if (record.ok() || Hopeless(record.status()) || deadline.passed()) return record;
      Pause(back_off_.NextMs(), deadline);
    }
  }

  // Reads, then changes what was read; again after a conflict or a lost reply. No record: nothing
  // to do.
  template <typename F>
  absl::Status Change(const F& change) {
    const Deadline deadline = Deadline::After(kInsistMs);
    back_off_.Reset();
    while (true) {
      HF_ASSIGN_OR_RETURN(const Record record, Read(false));
      if (!record.exists) return absl::OkStatus();
      if (record.founded_at != record.store_id) {
        return absl::FailedPreconditionError(
            "the record of this run was written by another Redis instance (restarted or replaced): "
            "nothing is "
            "changed in it");
      }
      const Fence fence{record.uuid, record.founded_at, record.generation, record.nonce};
      const absl::StatusOr<Outcome> outcome = change(record, fence);
      if (outcome.ok() && *outcome == Outcome::kApplied) return absl::OkStatus();
      if (!outcome.ok() && Hopeless(outcome.status())) return outcome.status();
      if (deadline.passed()) {
        return outcome.ok() ? absl::AbortedError("the run's record kept changing; try again")
                            : outcome.status();
      }
      Pause(back_off_.NextMs(), deadline);
    }
  }

  const MembershipOptions options_;
  std::unique_ptr<Store> store_;
  BackOff back_off_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Observer>> Observer::Connect(const MembershipOptions& options,
                                                            Deadline deadline) {
  auto observer = std::make_unique<ObserverImpl>(options);
  HF_RETURN_IF_ERROR(observer->Open(deadline));
  return observer;
}

}  // namespace holdfast::rendezvous
