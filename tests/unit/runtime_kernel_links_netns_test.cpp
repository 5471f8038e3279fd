// What the kernel tells of links.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/streams/uv_streams.h"
#include "tests/support/own_network.h"

namespace nccl_ha {
namespace {

using test::in_own_network;
using test::ip;
using test::lay_cable;
using test::link_becomes;
using test::until;

/// Messages that netlink sockets of this namespace had no room for.
size_t dropped() {
  std::ifstream file("/proc/thread-self/net/netlink");
  std::string line;
  std::getline(file, line);
  constexpr int column = 8;
  size_t sum = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    for (int i = 0; i <= column; ++i) {
      words >> word;
    }
    sum += std::strtoul(word.c_str(), nullptr, 10);
  }
  return sum;
}

/// Each change is told, though nothing of a link changes.
void change_until_dropped() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const size_t before = dropped();
  ifreq request{};
  std::string("lo").copy(request.ifr_name, IFNAMSIZ - 1);
  const auto change = [&] {
    request.ifr_mtu = request.ifr_mtu == 2000 ? 3000 : 2000;
    return ioctl(fd, SIOCSIFMTU, &request) == 0;
  };
  ASSERT_TRUE(until(
      [&] {
        for (int i = 0; i < 16; ++i) {
          EXPECT_TRUE(change());
        }
        return dropped() > before;
      },
      std::chrono::seconds(60)));
  close(fd);
}

class HeardLinks final : public LinkWatchOwner {
 public:
  HeardLinks() : streams_(*make_uv_streams()) {
    auto watch = streams_->watch_links(this);
    EXPECT_TRUE(watch.ok());
    watch_ = std::move(*watch);
    streams_->turn();
  }
  /// Whether it is told, sooner or later, of a link; what was told is forgotten.
  bool told(const std::string& name, bool up) {
    const std::pair wanted{name, up};
    const bool there = until([&] {
      streams_->turn();
      return std::find(told_.begin(), told_.end(), wanted) != told_.end();
    });
    told_.clear();
    return there;
  }
  /// The same for a watch that ends with its first news.
  bool told_and_ends() {
    ends_ = true;
    return until([&] {
      streams_->turn();
      return watch_ == nullptr;
    });
  }
  /// Whether it was ever told of it.
  bool was_told(const std::string& name, bool up) const {
    return std::find(all_.begin(), all_.end(), std::pair{name, up}) != all_.end();
  }
  /// The same for a name that no interface has any more.
  bool was_told_gone(const std::string& name) const {
    return std::find(gone_.begin(), gone_.end(), name) != gone_.end();
  }
  /// Sooner or later.
  bool told_gone(const std::string& name) {
    return until([&] {
      streams_->turn();
      return was_told_gone(name);
    });
  }

 private:
  void on_link_gone(const std::string& interface) override { gone_.push_back(interface); }
  void on_link(const std::string& interface, bool up) override {
    told_.emplace_back(interface, up);
    all_.emplace_back(interface, up);
    if (ends_) {
      watch_.reset();
    }
  }

  bool ends_ = false;
  std::vector<std::pair<std::string, bool>> told_;
  std::vector<std::pair<std::string, bool>> all_;
  std::vector<std::string> gone_;
  std::unique_ptr<StreamFactory> streams_;
  std::unique_ptr<LinkWatch> watch_;
};

TEST(KernelLinks, TellOfACableThatIsPulledAndPutBack) {
  EXPECT_EQ(in_own_network([] {
              ASSERT_TRUE(lay_cable("one"));
              HeardLinks links;
              ASSERT_TRUE(ip("link set one-far down"));
              EXPECT_TRUE(links.told("one", false));
              ASSERT_TRUE(ip("link set one-far up"));
              EXPECT_TRUE(links.told("one", true));
              ASSERT_TRUE(ip("link del one"));
              EXPECT_TRUE(links.told("one", false));
              EXPECT_TRUE(links.told_gone("one"));
            }),
            0);
}

TEST(KernelLinks, TellOfANameThatNoInterfaceHasAnyMore) {
  EXPECT_EQ(in_own_network([] {
              ASSERT_TRUE(lay_cable("one") && lay_cable("two"));
              HeardLinks links;
              ASSERT_TRUE(ip("link set one down"));
              EXPECT_TRUE(links.told("one", false));
              ASSERT_TRUE(ip("link set one name three"));
              EXPECT_TRUE(links.told_gone("one"));
              change_until_dropped();
              ASSERT_TRUE(ip("link del two"));
              EXPECT_TRUE(links.told_gone("two")) << "news was lost";
              EXPECT_FALSE(links.was_told_gone("three")) << "it is there";
            }),
            0);
}

TEST(KernelLinks, WhatTheKernelHasNoRoomForIsLookedAtAndLaterNewsIsTold) {
  EXPECT_EQ(in_own_network([] {
              ASSERT_TRUE(lay_cable("one") && lay_cable("two"));
              HeardLinks links;
              for (int round = 0; round < 2; ++round) {
                change_until_dropped();
                ASSERT_TRUE(ip("link set one-far down") && link_becomes("one", false));
                EXPECT_TRUE(links.told("one", false)) << round;
                ASSERT_TRUE(ip("link set one-far up"));
                EXPECT_TRUE(links.told("one", true)) << round;
              }
              change_until_dropped();
              ASSERT_TRUE(ip("link del two") && lay_cable("three"));
              EXPECT_TRUE(links.told("three", true));
              ASSERT_TRUE(ip("link set three down"));
              EXPECT_TRUE(links.told("three", false));
            }),
            0);
}

TEST(KernelLinks, OneThatIsMadeAnewUnheardHasItsOwnState) {
  EXPECT_EQ(in_own_network([] {
              ASSERT_TRUE(lay_cable("one") && lay_cable("two"));
              HeardLinks links;
              change_until_dropped();
              ASSERT_TRUE(ip("link del one") && ip("link del two") && lay_cable("one"));
              EXPECT_TRUE(links.told("two", false));
              EXPECT_FALSE(links.was_told("one", false)) << "it is there";
              ASSERT_TRUE(ip("link set one-far down"));
              EXPECT_TRUE(links.told("one", false));
            }),
            0);
}

TEST(KernelLinks, AWatchMayEndWithWhatItTells) {
  EXPECT_EQ(in_own_network([] {
              ASSERT_TRUE(lay_cable("one") && lay_cable("two"));
              HeardLinks heard;
              ASSERT_TRUE(ip("link del one"));
              EXPECT_TRUE(heard.told_and_ends());
              HeardLinks looked;
              change_until_dropped();
              ASSERT_TRUE(ip("link del two"));
              EXPECT_TRUE(looked.told_and_ends());
            }),
            0);
}

}  // namespace
}  // namespace nccl_ha
