// test() beside an actor that acts between any two of its looks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>

#include "actors/driver.h"
#include "actors/receive_channel.h"
#include "plugin/net.h"
#include "tests/rig/sim/world.h"

namespace nccl_ha::plugin {
namespace {

/// A channel that nobody can look at, but for one request, until its actor has acted: who tries
/// waits for that.
class GuardedChannel {
 public:
  GuardedChannel()
      : world_(1),
        process_(**world_.add_process(sim::ip(10, 0, 0, 1), Config{})),
        driver_(process_.engine->worker(0), *process_.engine, true),
        page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        bytes_((sizeof(ReceiveChannel) / page_ + 1) * page_),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        channel_(new (memory_) ReceiveChannel(1, fabric::Attachment{}, &driver_)) {
    channel_->set_ready();
    // The last one: what it shares a page with are others.
    for (ReceiveRequest* slot = channel_->acquire(); slot; slot = channel_->acquire()) {
      request_ = std::max(request_, slot);
    }
    channel_->submit(*request_);
  }
  ~GuardedChannel() {
    channel_->~ReceiveChannel();
    munmap(memory_, bytes_);
  }
  GuardedChannel(const GuardedChannel&) = delete;
  GuardedChannel& operator=(const GuardedChannel&) = delete;

  /// test(), while the actor ends the request or leaves it, and then fails.
  abi::NcclResult test_at_failure(bool ends, int* done) {
    ends_ = ends;
    const auto begin = reinterpret_cast<uintptr_t>(memory_);
    const auto open = reinterpret_cast<uintptr_t>(request_) / page_ * page_;
    EXPECT_GT(open, begin);
    struct sigaction acts {};
    acts.sa_handler = act;
    struct sigaction before {};
    sigaction(SIGSEGV, &acts, &before);
    acting_ = this;
    mprotect(memory_, open - begin, PROT_NONE);
    const auto result = net_test(request_, done, nullptr);
    sigaction(SIGSEGV, &before, nullptr);
    EXPECT_EQ(acting_, nullptr) << "test() did not look";
    return result;
  }

 private:
  static void act(int) {
    GuardedChannel& guarded = *acting_;
    acting_ = nullptr;
    mprotect(guarded.memory_, guarded.bytes_, PROT_READ | PROT_WRITE);
    if (guarded.ends_) {
      guarded.request_->state.store(RequestState::done, std::memory_order_release);
    }
    guarded.channel_->set_failed(guarded.closed_);
  }
  static inline GuardedChannel* acting_ = nullptr;

  sim::World world_;
  sim::Process& process_;
  Driver driver_;
  const size_t page_;
  const size_t bytes_;
  void* const memory_;
  ReceiveChannel* const channel_;
  ReceiveRequest* request_ = nullptr;
  const Error closed_ = fail(Errc::closed, "gone");
  bool ends_ = false;
};

TEST(PluginTransfer, WhatIsDoneRightBeforeAFailureIsReportedDone) {
  GuardedChannel channel;
  int done = 0;
  EXPECT_EQ(channel.test_at_failure(true, &done), abi::NcclResult::success);
  EXPECT_EQ(done, 1);
}

TEST(PluginTransfer, WhatIsNotDoneFailsWithTheConnection) {
  GuardedChannel channel;
  int done = 1;
  EXPECT_EQ(channel.test_at_failure(false, &done), abi::NcclResult::remote_error);
  EXPECT_EQ(done, 0);
}

}  // namespace
}  // namespace nccl_ha::plugin
