// A path and a stream that only write down what they are given.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/fabric/path.h"
#include "runtime/streams/stream.h"

namespace nccl_ha {

/// Takes everything and completes nothing.
class SilentPath final : public fabric::Path {
 public:
  std::span<const std::byte> local_address() const override { return {}; }
  Result<void> connect(std::span<const std::byte>) override { return {}; }
  fabric::PathState state() const override { return state_; }
  fabric::CompletionStatus cause() const override { return fabric::CompletionStatus::ok; }
  Errc post_write(const fabric::WritePost& post) override {
    posts.push_back(post);
    return Errc::ok;
  }
  Errc post_receive() override {
    ++receives;
    return Errc::ok;
  }
  Errc post_flush(const fabric::FlushPost& post) override {
    if (flush_answer == Errc::ok) {
      flushes.push_back(post);
    }
    return flush_answer;
  }
  void fail(const Error&) override { state_ = fabric::PathState::error; }
  void await_stop() override {
    ++stops_awaited;
    if (on_await) {
      on_await();
    }
  }
  const fabric::PathTraits& traits() const override { return path_traits; }
  void failure_domains(fabric::FailureDomains& out) const override { out = domains; }
  std::string describe() const override { return "silent"; }

  std::vector<fabric::WritePost> posts;
  std::vector<fabric::FlushPost> flushes;
  Errc flush_answer = Errc::ok;
  unsigned receives = 0;
  unsigned stops_awaited = 0;
  std::function<void()> on_await;
  fabric::PathTraits path_traits;
  fabric::FailureDomains domains;

 private:
  fabric::PathState state_ = fabric::PathState::ready;
};

class SilentStream final : public Stream {
 public:
  void set_owner(StreamOwner* owner) override { owner_ = owner; }
  Result<void> write(std::span<const std::byte>) override { return {}; }
  bool all_arrived() const override { return true; }
  void shutdown_then_close() override {}
  Result<sockaddr_storage> local_address() override { return sockaddr_storage{}; }
  Result<sockaddr_storage> peer_address() override { return sockaddr_storage{}; }
  /// The peer wrote that.
  void hear(std::span<const std::byte> bytes) { owner_->on_stream_data(*this, bytes); }

 private:
  StreamOwner* owner_ = nullptr;
};

}  // namespace nccl_ha
