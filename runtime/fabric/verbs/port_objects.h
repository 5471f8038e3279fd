// What a port has at its device for all of its paths.  Made and ended on the conductor's thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/base/result.h"
#include "runtime/fabric/verbs/device.h"
#include "runtime/fabric/verbs/scratch.h"

namespace nccl_ha::fabric::verbs {

/// The channel of events, and the memory of probes and flushes.
class PortObjects {
 public:
  /// Takes the channel over.
  PortObjects(const Device& device, ibv_comp_channel* channel)
      : device_(device), channel_(channel), scratch_(device) {}
  ~PortObjects() { device_.close_channel(channel_); }
  PortObjects(const PortObjects&) = delete;
  PortObjects& operator=(const PortObjects&) = delete;

  const Device& device() const { return device_; }
  ibv_comp_channel* channel() const { return channel_; }
  /// Registers it the first time.
  Result<void> open_scratch();
  Scratch& scratch() { return scratch_; }

 private:
  const Device& device_;
  ibv_comp_channel* const channel_;
  Scratch scratch_;
};

/// Has a fixed room; paths are put where there is enough of it left.
class CompletionQueue {
 public:
  /// `owner`: what the device's events of it are about.
  CompletionQueue(std::shared_ptr<PortObjects> port, uint32_t room, void* owner)
      : port_(std::move(port)), room_(room), owner_(owner) {}
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// Nothing to do where it succeeded before.
  Result<void> open();
  ibv_cq* get() const { return queue_; }
  PortObjects& port() { return *port_; }

  uint32_t room() const { return room_; }
  // Any thread: a queue pair has its part until the device knows it no more.
  uint32_t left() const { return room_ - used_.load(std::memory_order_acquire); }
  void reserve(uint32_t entries) { used_.fetch_add(entries, std::memory_order_relaxed); }
  void give_back(uint32_t entries) { used_.fetch_sub(entries, std::memory_order_release); }

 private:
  const std::shared_ptr<PortObjects> port_;
  const uint32_t room_;
  void* const owner_;
  std::atomic<uint32_t> used_{0};
  ibv_cq* queue_ = nullptr;
};

}  // namespace nccl_ha::fabric::verbs
