// A child process that loads the plugin, gets a limit and lives with it.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "tests/support/plugin_fixture.h"

namespace nccl_ha::test {

inline constexpr unsigned hang_s = 60;

/// What a child tells its parent without a descriptor.
struct Told {
  bool refused = false;    ///< something failed under the limit
  bool recovered = false;  ///< and all of it worked without
  char text[2048] = {};    ///< the error's, or what is wrong with the plugin
};

/// When the limit comes into force.
enum class From { init, connect };

/// Runs `body` in a child of its own.  The child's end as waitpid() has it.
inline int in_child(Told* told, const std::function<void(Told&)>& body) {
  void* memory =
      mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Told;
  const pid_t child = fork();
  if (child == 0) {
    alarm(hang_s);
    body(*shared);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  *told = *shared;
  munmap(memory, sizeof(Told));
  return status;
}

/// With all that the plugin logged.
inline void tell(Told& told, const Error& error) {
  std::string text = error.message();
  for (const std::string& warning : tools::take_plugin_warnings()) {
    text += "\n  " + warning;
  }
  std::snprintf(told.text, sizeof told.text, "%s", text.c_str());
}

/// One connection of a process with itself, with a message, from init to finalize.
class Life {
 public:
  explicit Life(tools::NetApi& api) : api_(api) {}

  Result<void> run(const std::function<void()>& before_connect) {
    auto outcome = live(before_connect);
    close_all();
    if (auto ended = api_.finalize(); !ended && outcome) {
      return ended.error();
    }
    return outcome;
  }

 private:
  Result<void> live(const std::function<void()>& before_connect) {
    if (auto ready = api_.init(); !ready) {
      return ready.error();
    }
    tools::NetHandle handle{};
    auto listening = api_.listen(0, handle);
    if (!listening) {
      return listening.error();
    }
    listening_ = *listening;
    before_connect();
    if (auto met = meet(handle); !met) {
      return met.error();
    }
    return send_one();
  }

  Result<void> meet(tools::NetHandle& handle) {
    Result<void> outcome;
    const bool ended = until([&] {
      if (send_ == nullptr) {
        auto got = api_.connect(0, handle);
        if (!got) {
          outcome = got.error();
          return true;
        }
        send_ = *got;
      }
      if (recv_ == nullptr) {
        auto got = api_.accept(listening_);
        if (!got) {
          outcome = got.error();
          return true;
        }
        recv_ = *got;
      }
      return send_ != nullptr && recv_ != nullptr;
    });
    return ended ? outcome : fail(Errc::timed_out, "neither a connection nor an error");
  }

  Result<void> send_one() {
    void* data = &message_;
    size_t bytes = sizeof message_;
    auto key_there = api_.register_memory(send_, data, bytes);
    auto key_here = api_.register_memory(recv_, &received_, bytes);
    if (!key_there || !key_here) {
      return (key_there ? key_here : key_there).error();
    }
    void* requests[2] = {nullptr, nullptr};
    abi::NcclResult result = abi::NcclResult::success;
    const bool posted = until([&] {
      int tag = 0;
      void* into = &received_;
      if (requests[0] == nullptr) {
        result = api_.irecv(recv_, 1, &into, &bytes, &tag, &*key_here, &requests[0]);
      }
      if (result == abi::NcclResult::success && requests[1] == nullptr) {
        result = api_.isend(send_, data, bytes, 0, *key_there, &requests[1]);
      }
      return result != abi::NcclResult::success ||
             (requests[0] != nullptr && requests[1] != nullptr);
    });
    for (void* request : requests) {
      int done = 0;
      const bool ended = posted && result == abi::NcclResult::success && until([&] {
                           result = api_.test(request, &done, nullptr);
                           return done != 0 || result != abi::NcclResult::success;
                         });
      if (!ended || result != abi::NcclResult::success) {
        return fail(Errc::remote, "a message failed: " + tools::last_plugin_warning());
      }
    }
    static_cast<void>(api_.deregister_memory(send_, *key_there));
    static_cast<void>(api_.deregister_memory(recv_, *key_here));
    return received_ == message_ ? Result<void>() : fail(Errc::internal, "a message came damaged");
  }

  void close_all() {
    if (send_ != nullptr) {
      static_cast<void>(api_.close_send(send_));
    }
    if (recv_ != nullptr) {
      static_cast<void>(api_.close_recv(recv_));
    }
    if (listening_ != nullptr) {
      static_cast<void>(api_.close_listen(listening_));
    }
  }

  tools::NetApi& api_;
  void* listening_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  uint64_t message_ = 0x6D65737361676521;
  uint64_t received_ = 0;
};

/// Lives once while `tighten` is in force (from then on), and once more after `loosen`.
inline void live_under(Told& told, From from, const std::function<void()>& tighten,
                       const std::function<void()>& loosen) {
  tools::set_plugin_log("", tools::PluginLog::nothing);
  auto library = tools::NetLibrary::open(plugin_path, 12);
  if (!library) {
    tell(told, library.error());
    _exit(1);
  }
  if (from == From::init) {
    tighten();
  }
  const auto outcome = Life((*library)->api()).run(from == From::connect ? tighten : [] {});
  loosen();
  if (!outcome) {
    told.refused = true;
    tell(told, outcome.error());
  }
  if (auto again = Life((*library)->api()).run([] {}); !again) {
    tell(told, again.error());
    _exit(2);
  }
  library->reset();
  told.recovered = true;
}

}  // namespace nccl_ha::test
