// What a profiler of NCCL hears of transfers: every event that started stops once, in the caller's
// thread, with what moved; and nothing that it answers changes a transfer.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "plugin/profiler_event.h"
#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {
namespace {

using abi::ProfilerEvent;
using abi::TransferV1;

/// Stands for NCCL's callback and the profiler behind it.
struct Heard {
  struct Event {
    TransferV1 started{};
    TransferV1 stopped{};
    void* parent = nullptr;
    int stops = 0;
  };
  std::vector<std::unique_ptr<Event>> events;
  bool wants = true;
  NcclResult answer = NcclResult::success;
  std::thread::id thread = std::this_thread::get_id();
  std::vector<std::string> wrong;
};
Heard* heard = nullptr;

NcclResult callback(void** handle, int type, void* parent, int64_t id, void* data) {
  if (id != abi::profiler_id) {
    heard->wrong.emplace_back("another plugin's id");
  }
  if (std::this_thread::get_id() != heard->thread) {
    heard->wrong.emplace_back("another thread");
  }
  switch (static_cast<ProfilerEvent>(type)) {
    case ProfilerEvent::start: {
      if (*handle != nullptr) {
        heard->wrong.emplace_back("starts with a handle");
      }
      if (!heard->wants) {
        break;
      }
      auto event = std::make_unique<Heard::Event>();
      event->started = *static_cast<const TransferV1*>(data);
      event->parent = parent;
      *handle = event.get();
      heard->events.push_back(std::move(event));
      break;
    }
    case ProfilerEvent::update_and_stop: {
      auto* event = static_cast<Heard::Event*>(*handle);
      event->stopped = *static_cast<const TransferV1*>(data);
      ++event->stops;
      break;
    }
    default:
      heard->wrong.emplace_back("an event that nobody needs");
  }
  return heard->answer;
}

void log_nothing(abi::LogLevel, unsigned long, const char*, int, const char*, ...) {}

/// Loads the library as the fixture does, and gives it a callback.
class Profiler : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    heard = &heard_;
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("HA_NCCL_USE_PROGRESS_THREAD", std::get<1>(GetParam()) ? "1" : "0", 1);
    library_ = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    table_ = static_cast<const abi::NetV11*>(dlsym(library_, "ncclNetPlugin_v11"));
    old_table_ = static_cast<const abi::NetV10*>(dlsym(library_, "ncclNetPlugin_v10"));
    ASSERT_TRUE(table_ != nullptr && old_table_ != nullptr);
    initialize(callback);
  }
  void TearDown() override {
    close_ends();
    if (version() >= 11) {
      EXPECT_EQ(table_->finalize(context_), NcclResult::success);
    }
    dlclose(library_);
    heard = nullptr;
    EXPECT_TRUE(heard_.wrong.empty()) << heard_.wrong.front();
  }

  static int version() { return std::get<0>(GetParam()); }
  void initialize(abi::ProfilerCallback given) {
    abi::CommConfig config{-1};
    const NcclResult result = version() >= 11
                                  ? table_->init(&context_, 1, &config, log_nothing, given)
                                  : old_table_->init(log_nothing, given);
    ASSERT_EQ(result, NcclResult::success);
  }

  void connect_ends() {
    tools::NetHandle handle{};
    void* listener = nullptr;
    abi::CommConfig config{-1};
    abi::DeviceHandle* offload = nullptr;
    const bool old = version() < 11;
    ASSERT_EQ(old ? old_table_->listen(0, handle.data(), &listener)
                  : table_->listen(context_, 0, handle.data(), &listener),
              NcclResult::success);
    ASSERT_TRUE(until([&] {
      if (send_ == nullptr) {
        EXPECT_EQ(old ? old_table_->connect(0, &config, handle.data(), &send_, &offload)
                      : table_->connect(context_, 0, handle.data(), &send_, &offload),
                  NcclResult::success);
      }
      if (receive_ == nullptr) {
        EXPECT_EQ(table_->accept(listener, &receive_, &offload), NcclResult::success);
      }
      return send_ != nullptr && receive_ != nullptr;
    }));
    EXPECT_EQ(table_->close_listen(listener), NcclResult::success);
    memory_.resize(1 << 16);
    ASSERT_EQ(table_->reg_mr(send_, memory_.data(), memory_.size(), abi::ptr_host, &send_key_),
              NcclResult::success);
    ASSERT_EQ(
        table_->reg_mr(receive_, memory_.data(), memory_.size(), abi::ptr_host, &receive_key_),
        NcclResult::success);
  }
  void close_ends() {
    if (send_ != nullptr) {
      EXPECT_EQ(table_->close_send(send_), NcclResult::success);
    }
    if (receive_ != nullptr) {
      EXPECT_EQ(table_->close_recv(receive_), NcclResult::success);
    }
    send_ = receive_ = nullptr;
  }

  struct Post {
    size_t bytes;
    int tag;
    void* handle;
  };
  void* post_receive(std::vector<Post> posts) {
    std::vector<void*> data, keys, handles;
    std::vector<size_t> sizes;
    std::vector<int> tags;
    for (const Post& post : posts) {
      data.push_back(memory_.data() + memory_.size() / 2 + data.size() * 4096);
      keys.push_back(receive_key_);
      handles.push_back(post.handle);
      sizes.push_back(post.bytes);
      tags.push_back(post.tag);
    }
    void* request = nullptr;
    EXPECT_EQ(table_->irecv(receive_, static_cast<int>(posts.size()), data.data(), sizes.data(),
                            tags.data(), keys.data(), handles.data(), &request),
              NcclResult::success);
    EXPECT_NE(request, nullptr);
    return request;
  }
  void* post_send(const Post& post) {
    void* request = nullptr;
    EXPECT_TRUE(until([&] {
      EXPECT_EQ(table_->isend(send_, memory_.data(), post.bytes, post.tag, send_key_, post.handle,
                              &request),
                NcclResult::success);
      return request != nullptr;
    }));
    return request;
  }
  bool finish(void* request) {
    return until([&] {
      int done = 0;
      EXPECT_EQ(table_->test(request, &done, nullptr), NcclResult::success);
      return done == 1;
    });
  }

  Heard heard_;
  void* library_ = nullptr;
  const abi::NetV11* table_ = nullptr;      ///< data calls are the same in v10 to v12
  const abi::NetV10* old_table_ = nullptr;  ///< those before
  void* context_ = nullptr;
  void* send_ = nullptr;
  void* receive_ = nullptr;
  std::vector<unsigned char> memory_;
  void* send_key_ = nullptr;
  void* receive_key_ = nullptr;
  int handles_[8] = {};
};

TEST_P(Profiler, AnEventForEachBufferThatStopsWithWhatMoved) {
  connect_ends();
  // More requests than slots, so that slots are used again.
  constexpr size_t rounds = 300;
  for (size_t i = 0; i < rounds; ++i) {
    void* receive = post_receive({{1000, 7, &handles_[0]}});
    void* send = post_send({100 + i, 7, &handles_[1]});
    ASSERT_TRUE(finish(send) && finish(receive));
  }
  ASSERT_EQ(heard_.events.size(), 2 * rounds);
  for (size_t i = 0; i < heard_.events.size(); ++i) {
    const Heard::Event& event = *heard_.events[i];
    const bool is_send = i % 2 == 1;
    ASSERT_EQ(event.stops, 1) << i;
    EXPECT_EQ(event.parent, &handles_[is_send ? 1 : 0]);
    EXPECT_EQ(event.started.kind, is_send ? abi::TransferKind::send : abi::TransferKind::receive);
    EXPECT_EQ(event.started.state, abi::TransferState::posted);
    EXPECT_EQ(event.started.fabric, abi::TransferFabric::udp);
    EXPECT_EQ(event.started.device, 0);
    EXPECT_EQ(event.started.tag, 7);
    EXPECT_EQ(event.started.bytes, is_send ? 100 + i / 2 : 1000U);
    EXPECT_EQ(event.stopped.state, abi::TransferState::done);
    EXPECT_EQ(event.stopped.bytes, 100 + i / 2);
    EXPECT_EQ(event.stopped.failovers, 0U);
    EXPECT_EQ(event.stopped.connection, heard_.events[is_send ? 1 : 0]->started.connection);
  }
  EXPECT_NE(heard_.events[0]->started.connection, heard_.events[1]->started.connection);
}

TEST_P(Profiler, BuffersOfOneReceiveAreEventsOfTheirOwn) {
  connect_ends();
  void* receive = post_receive({{100, 1, &handles_[0]}, {200, 2, nullptr}, {300, 3, &handles_[2]}});
  for (const int tag : {3, 1, 2}) {
    ASSERT_TRUE(finish(post_send({static_cast<size_t>(tag) * 50, tag, nullptr})));
  }
  ASSERT_TRUE(finish(receive));
  ASSERT_EQ(heard_.events.size(), 2U) << "a buffer without a handle has no event";
  for (const size_t i : {0U, 1U}) {
    const Heard::Event& event = *heard_.events[i];
    EXPECT_EQ(event.stops, 1);
    EXPECT_EQ(event.started.position, i * 2);
    EXPECT_EQ(event.stopped.position, i * 2);
    EXPECT_EQ(event.stopped.bytes, (i * 2 + 1) * 50);
  }
}

TEST_P(Profiler, AProfilerThatWantsNoneHasNoneAndNoneStops) {
  heard_.wants = false;
  connect_ends();
  void* receive = post_receive({{100, 1, &handles_[0]}});
  void* send = post_send({100, 1, &handles_[1]});
  EXPECT_TRUE(finish(send) && finish(receive));
  EXPECT_TRUE(heard_.events.empty());
}

TEST_P(Profiler, WhatItAnswersDoesNotMatterToATransfer) {
  heard_.answer = NcclResult::internal_error;
  connect_ends();
  void* receive = post_receive({{100, 1, &handles_[0]}});
  heard_.answer = NcclResult::success;
  void* send = post_send({100, 1, &handles_[1]});
  heard_.answer = NcclResult::internal_error;
  EXPECT_TRUE(finish(send) && finish(receive));
  ASSERT_EQ(heard_.events.size(), 2U);
  EXPECT_EQ(heard_.events[0]->stops, 0) << "a start that failed is no event";
  EXPECT_EQ(heard_.events[1]->stops, 1);
}

TEST_P(Profiler, AFailureStopsAnEventOnce) {
  connect_ends();
  void* receive = post_receive({{100, 1, &handles_[0]}});
  EXPECT_EQ(table_->close_send(send_), NcclResult::success);
  send_ = nullptr;
  const auto fails = [&] {
    int done = 0;
    return table_->test(receive, &done, nullptr) != NcclResult::success;
  };
  ASSERT_TRUE(until(fails));
  EXPECT_TRUE(fails());
  ASSERT_EQ(heard_.events.size(), 1U);
  EXPECT_EQ(heard_.events[0]->stops, 1);
  EXPECT_EQ(heard_.events[0]->stopped.state, abi::TransferState::failed);
  EXPECT_EQ(heard_.events[0]->stopped.bytes, 0U);
}

TEST_P(Profiler, ACloseStopsNothing) {
  connect_ends();
  post_receive({{100, 1, &handles_[0]}});
  close_ends();
  ASSERT_EQ(heard_.events.size(), 1U);
  EXPECT_EQ(heard_.events[0]->stops, 0);
}

NcclResult another_callback(void**, int, void*, int64_t, void*) {
  heard->wrong.emplace_back("a handle may be another NCCL's");
  return NcclResult::success;
}

TEST_P(Profiler, TwoCopiesOfNcclHaveNone) {
  void* const first = context_;
  initialize(another_callback);
  connect_ends();
  void* receive = post_receive({{100, 1, &handles_[0]}});
  void* send = post_send({100, 1, &handles_[1]});
  EXPECT_TRUE(finish(send) && finish(receive));
  EXPECT_TRUE(heard_.events.empty());
  if (version() >= 11) {
    EXPECT_EQ(table_->finalize(first), NcclResult::success);
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, Profiler,
                         ::testing::Combine(::testing::Values(10, 11), ::testing::Bool()),
                         instance_name);

}  // namespace
}  // namespace nccl_ha::test
