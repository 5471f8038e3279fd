// What the agent knows of each flow, and what it tells the plugin of it: registry, policy and hints
// in one place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/agent_protocol.h"
#include "actors/telemetry_packet.h"
#include "ha/flow_registry.h"
#include "ha/share_policy.h"
#include "runtime/base/instant.h"
#include "runtime/telemetry/hint_writer.h"

namespace nccl_ha::tools {

/// Hears of flows that begin and end on this host.
class FlowObserver {
 public:
  virtual ~FlowObserver() = default;
  virtual void on_flow_begun(const ha::Flow& flow) = 0;
  virtual void on_flow_ended(const ha::Flow& flow) = 0;
};

/// Of the agent's worker.
class FlowBoard {
 public:
  struct Counts {
    uint64_t entered = 0;       ///< connections registered
    uint64_t refused = 0;       ///< connections that were not
    uint64_t told = 0;          ///< levels that concerned a flow
    uint64_t unmatched = 0;     ///< levels that concerned none
    uint64_t hints = 0;         ///< hints written
    uint64_t backpressure = 0;  ///< times that a flow lost a rail to it
  };
  /// The host's own end of a rail.
  struct LocalEnd {
    uint8_t level = 0;
    int64_t mbps = 0;  ///< 10^6 bit/s; 0: not known
  };
  using LocalEnds = std::array<LocalEnd, ha::SharePolicy::rails>;
  struct FlowState {
    ha::Flow flow;
    ha::SharePolicy policy;
    ha::SharePolicy::Decision decision;
    std::string source_host;
    std::string destination_host;
    std::vector<std::string> devices;
    Instant begun{};
    uint64_t told = 0;
    std::array<std::optional<Instant>, ha::SharePolicy::rails> told_at{};  ///< of each rail
  };

  /// `previous`: the table of the agent before this one, whose shares are gone on with; may be
  /// null.
  FlowBoard(std::unique_ptr<HintWriter> writer, uint32_t connections_per_client,
            const ha::SharePolicy::Options& policy, std::shared_ptr<const HintTable> previous);

  void set_observer(FlowObserver* observer) { observer_ = observer; }
  Result<FlowPlace> enter(ha::FlowRegistry::Client client, uint64_t connection,
                          const FlowAnnouncement& announcement, Instant now,
                          ha::FlowRegistry::User user = 0);
  Result<void> leave(ha::FlowRegistry::Client client, uint64_t connection, Instant now);
  /// All that a process registered ends with it.
  void drop(ha::FlowRegistry::Client client, Instant now);

  /// A datagram's entries; what names a flow goes before what is said of all.  Hints change before
  /// this returns.
  void on_congestion(std::span<const CongestionEntry> entries, Instant now);
  /// What the host's own ends of both rails look like, measured again and again: counts beside what
  /// switches say, and alone where they say nothing lately.
  void on_local(const LocalEnds& ends, Instant now);
  /// Shares move and telemetry ages: every few milliseconds.
  void tick(Instant now);
  void give_heartbeat(Instant now) { writer_->give_heartbeat(now); }
  void set_connections_per_client(uint32_t most) { registry_.set_connections_per_client(most); }
  void set_policy(const ha::SharePolicy::Options& policy);

  uint64_t generation() const { return writer_->generation(); }
  const ha::FlowRegistry& registry() const { return registry_; }
  /// Of a slot that the registry names.
  const FlowState& state(uint32_t slot) const { return *flows_[slot]; }
  uint8_t local_level(size_t rail) const { return local_[rail].level; }
  const Counts& counts() const { return counts_; }

 private:
  void decide(uint32_t slot, Instant now);
  void write(uint32_t slot, Instant now);
  void begin(uint32_t slot, const FlowAnnouncement& announcement, Instant now);
  void end(const ha::FlowRegistry::Left& left, Instant now);
  /// Flows and rails that a datagram has spoken of.
  using Named = std::vector<std::pair<uint32_t, uint8_t>>;
  void tell(uint32_t slot, const CongestionEntry& entry, Instant now);
  void tell_all(const CongestionEntry& entry, const Named& named, Instant now);

  std::unique_ptr<HintWriter> writer_;
  ha::FlowRegistry registry_;
  ha::SharePolicy::Options policy_;
  std::shared_ptr<const HintTable> previous_;
  FlowObserver* observer_ = nullptr;
  std::vector<std::optional<FlowState>> flows_;  ///< by slot
  LocalEnds local_{};
  unsigned local_turns_ = 0;   ///< measurements in a row that ask for a change of the next
  bool local_steers_ = false;  ///< one of them is congested
  Counts counts_;
};

}  // namespace nccl_ha::tools
