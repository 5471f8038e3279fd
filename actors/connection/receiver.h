// The data path of the accepting side: receives are announced, what arrives is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "actors/connection/announcer.h"
#include "actors/connection/control_link.h"
#include "actors/connection/flusher.h"
#include "actors/connection/open_receives.h"
#include "actors/connection/path_set.h"
#include "actors/connection/side.h"
#include "actors/connection/state.h"
#include "actors/receive_channel.h"
#include "actors/server.h"
#include "actors/size_records.h"

namespace nccl_ha {

/// What has to be given up or announced once more others decide (ReceiveRecovery).  One thread.
class Receiver final : public Server {
 public:
  Receiver(const ConnectionParts& parts, ReceiveChannel& channel);

  /// The tables that paths are made for.
  PathSet::Needs needs(bool flushes);
  /// Where the sender writes SizeRecords.
  uint64_t sizes_address() const { return reinterpret_cast<uint64_t>(sizes_.get()); }
  const OpenReceives& groups() const { return groups_; }
  Announcer& announcer() { return announcer_; }
  Flusher& flusher() { return flusher_; }
  /// Takes what the caller has submitted, as far as there is room.
  void take_submitted();

  // Server
  void on_submitted() override;
  void on_completion(const fabric::Completion& completion) override;
  void on_path_state(fabric::Path& path, fabric::PathState state, const Error& error) override {
    state_.owner.on_path_state(path, state, error);
  }
  void on_path_address(fabric::Path& path) override { state_.owner.on_path_address(path); }
  void on_fence_failed(fabric::Path& path, const Error& error) override {
    (void)path;
    state_.owner.on_fence_failed(error);
  }

 private:
  void begin_request(ReceiveRequest& request);
  bool take_whole(const fabric::Completion& completion, const Lane& lane);
  void on_data(const fabric::Completion& completion, const Lane& lane);
  void count_bytes(const Lane& lane, uint32_t bytes);
  void finish_group(ReceiveRequest& request);

  ConnectionState& state_;
  PathSet& paths_;
  ControlBoxes& boxes_;
  ReceiveChannel& channel_;
  ConnectionCounters& counters_;
  OpenReceives groups_;
  Announcer announcer_;
  Flusher flusher_;
  std::unique_ptr<SizeRecords> sizes_;  ///< the peer writes it
};

}  // namespace nccl_ha
