// Tries the network between hosts with the plugin itself: connections on every device, small and
// large messages each way.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/check/findings.h"
#include "tools/check/mesh_plan.h"
#include "tools/common/bootstrap.h"
#include "tools/common/net_library.h"

namespace nccl_ha::tools {

/// Who meets whom when everybody meets everybody: by round, the partner of `rank`, or none.  All
/// ranks compute the same (the circle method).  Pure.
std::vector<std::optional<uint32_t>> meetings(uint32_t rank, uint32_t ranks);

/// What one rank found out about a device towards one peer.
struct PairResult {
  uint32_t from = 0;
  uint32_t to = 0;
  int device = 0;
  uint32_t seen_by = 0;  ///< of both ranks the one that tells this
  std::string device_name;
  std::string error;                  ///< empty: it works
  std::vector<std::string> warnings;  ///< the plugin's
  double round_trip_us = 0;           ///< median of small messages
  double gigabytes_per_s = 0;         ///< median of large messages, both directions at once
  int64_t speed_mbps = 0;             ///< of the device, 10^6 bit/s; 0: unknown
  bool alone = false;                 ///< at last it was tried while no other pair was
  /// Then what the slower of both hosts moved to itself right before and after; 0: unknown.
  double own_gigabytes_per_s = 0;
  /// Datagrams that whoever tells this sent, and how many of them were found lost.
  uint64_t segments = 0;
  uint64_t segments_lost = 0;
  /// How many at most a socket of its host had no room for: no fault of the network.
  uint64_t segments_dropped = 0;
  /// What merge() and explain() enter: what each rank said of it, and that another finding is the
  /// cause of its error or warnings.
  std::map<uint32_t, std::string> sides = {};
  bool explained = false;
};
nlohmann::json to_json(const PairResult& result);
Result<PairResult> pair_from_json(const nlohmann::json& from);

/// A device, and the setting that leaves the plugin no other: on its own it would find its way to
/// the peer over another one, and hide what is wrong with this.
struct CheckedDevice {
  std::string name;
  std::string interface;
  std::string variable;
  std::string value;
  int64_t speed_mbps = 0;  ///< 10^6 bit/s; 0: unknown
};
/// The devices that the plugin would use on this host.
Result<std::vector<CheckedDevice>> checked_devices(const HostFacts& facts);

struct Trials {
  std::string plugin;
  std::vector<CheckedDevice> devices;
  std::string counters_dir;  ///< HA_NCCL_COUNTERS_DIR
  Duration patience{};
};
/// Meets every other rank on every device, each time for at most `patience`, and alone, up to three
/// times more, where that went badly.  All ranks call it together; each gets the results of its own
/// meetings. Changes the environment while it runs.  An error only where the ranks lose each other
/// or the plugin cannot be used.
Result<std::vector<PairResult>> try_pairs(World& world, const Trials& trials);

/// The same over the cables of a mesh: each is tried by itself, by the hosts at its ends.  Results
/// have the cable's number in the plan as their device.
Result<std::vector<PairResult>> try_cables(World& world, const Trials& trials, const MeshPlan& plan,
                                           const std::vector<MeshSheet>& sheets);

/// Whether rank 0 needs it: the numbers of the lower rank are enough, errors and warnings count of
/// both.  Pure.
bool is_worth_telling(const PairResult& result, uint32_t rank);

/// One result for each pair and device out of what both sides saw: an error counts whoever had it,
/// and two that differ are told with their hosts.  `hosts` by rank.  Pure.
std::vector<PairResult> merge(const std::vector<PairResult>& seen,
                              const std::vector<std::string>& hosts);

/// What is wrong with the network; `hosts` by rank.  Pure.
std::vector<Finding> judge(const std::vector<PairResult>& pairs,
                           const std::vector<std::string>& hosts);

// Parts of that, for meshes.

/// Its datagrams get lost, more of them than hosts lose that are busy, also where it is alone.
bool is_lossy(const PairResult& pair);
/// Those, by their place, that lose datagrams, look slow or failed without a reason, and of which
/// it is not certain yet that no busy host is to blame.  Not all of very many.
std::vector<size_t> to_try_again(const std::vector<PairResult>& pairs);

/// What to do about what the plugin said.
const char* remedy_for(const std::string& said);
/// The plugin's warnings about a pair in one line, without its good news, without what hosts say of
/// themselves, and without what is in `said` already, to which they go.
std::string warnings_of(const PairResult& pair, std::set<std::string>& said);

/// A pair that works much worse than it should.
struct Outlier {
  enum class Kind : uint8_t {
    slow,          ///< and no busy host explains it
    perhaps_slow,  ///< a host moved no more to itself in that moment
    late,          ///< its round trips take long
  };
  const PairResult* pair = nullptr;
  Kind kind = Kind::slow;
  std::string why;  ///< with what it is compared
};
/// Pairs that are slow beside the others on their device, beside another device of the same two
/// hosts, or beside what their link can do.  Pure.
std::vector<Outlier> find_outliers(const std::vector<PairResult>& pairs);
Finding finding_of(const Outlier& outlier, const std::string& where);

/// A host that has fewer devices than others, and what it says of that itself.
struct HostDevices {
  std::vector<std::string> names;
  std::vector<std::string> interfaces;  ///< of each; of RDMA devices too
  std::vector<std::string> networks;    ///< of each the first, as in 10.0.0.0/24; empty: none
  std::vector<std::string> bare;        ///< HostSheet::bare
  std::string only;  ///< the setting that leaves some out, as in HA_NCCL_IFNAME==rail0
  size_t lost = 0;   ///< how many its own findings name as lost
};
/// Hosts that have fewer devices than others; both by rank.  Pure.
std::vector<Finding> judge_device_counts(const std::vector<HostDevices>& devices,
                                         const std::vector<std::string>& hosts);

}  // namespace nccl_ha::tools
