// Checked traffic over one simulated connection, posted and tested as NCCL's proxy does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/rig/runs/link.h"

namespace nccl_ha::rig {

/// What Traffic moves.
struct TransferPlan {
  uint64_t groups = 20;  ///< grouped receives
  uint64_t seed = 1;     ///< of sizes, tags and content
  uint32_t bytes_max = 300000;
  uint32_t small_max = 900;
  double large = 0.5;    ///< part of the messages that may have up to bytes_max, not small_max
  double grouped = 0.3;  ///< part of the receives that have several buffers
  /// Memory is registered for its request and taken back when that is done; then, and by senders in
  /// any case, it is used for something else.
  bool memory_returns = false;
  bool flushes = false;  ///< after each receive over RDMA where HA_NCCL_IB_FLUSH asks for it
  bool gpu = false;      ///< what stands for a GPU's memory, at a sender whose NIC reaches it too
  bool may_end = false;  ///< a failure is no violation by itself; what was done must be right
  bool closes = false;   ///< each side closes as soon as its own requests are done
  size_t late_write_window =
      SIZE_MAX;                      ///< so many groups that are done are watched for late writes
  std::function<void()> each_round;  ///< may change the network
  /// How many groups may be posted by now; empty: all.
  std::function<uint64_t()> released;
};

/// Sends what a plan says over a link and checks every byte, the sizes reported, and that nothing
/// is written into a buffer after its receive was reported done.
class Traffic {
 public:
  Traffic(SimLink& link, const TransferPlan& plan);
  ~Traffic();
  /// Posts and tests as NCCL would; true when all is done or something failed.
  bool step();
  /// Empty: all was right.
  std::string outcome();
  /// How many bytes were to be moved so far.
  uint64_t bytes() const { return bytes_; }
  /// Places that the sender saw before a completion told of them.
  uint64_t places_found() const { return places_found_; }
  uint64_t groups_done() const { return receives_done_; }
  bool all_done() const { return all_received() && all_sent(); }
  bool is_wrong() const { return !wrong_.empty(); }
  /// From now on a failure is none of this run's violations.
  void let_end() { plan_.may_end = true; }
  SimLink& link() { return link_; }

 private:
  struct Group;
  void make_group();
  void make_groups(uint64_t end);
  Group& group(uint64_t number) { return *groups_[number - first_]; }
  void post_receives();
  void post_sends();
  void look_into_memory(int tag);
  void test_receives();
  bool take_received(Group& group);
  bool flush(Group& group);
  void test_sends();
  bool take_sent(size_t at);
  bool is_fine(const char* call, abi::NcclResult result, const Channel& side);
  bool is_done(bool sends, void* request, int* sizes);
  void retire();
  void check_quiet(const Group& group);
  void close_what_is_done();
  bool all_received() const { return receives_done_ == plan_.groups; }
  bool all_sent() const { return send_group_ == plan_.groups && open_sends_.empty(); }
  bool ended() const;
  void judge_failures();
  void take_back(Group& group);

  SimLink& link_;
  TransferPlan plan_;
  const bool sends_gpu_;
  uint64_t ahead_;       ///< groups that may be sent before they are posted
  uint64_t posted_max_;  ///< open receives
  Random shape_;
  Random random_;
  std::deque<std::unique_ptr<Group>> groups_;  ///< from number first_ on
  uint64_t first_ = 0;
  uint64_t receives_posted_ = 0;
  uint64_t receives_done_ = 0;
  uint64_t send_group_ = 0;
  size_t send_position_ = 0;
  struct OpenSend {
    void* request;
    uint64_t group;
    size_t part;
  };
  std::vector<OpenSend> open_sends_;
  size_t looked_at_ = 0;  ///< of them, besides the oldest
  std::string wrong_;
  uint64_t bytes_ = 0;
  uint64_t places_found_ = 0;
};

}  // namespace nccl_ha::rig
