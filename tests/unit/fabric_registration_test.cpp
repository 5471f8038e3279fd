// Memory that a second device is to reach, where the process or the device cannot do it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/fabric/provider.h"
#include "runtime/fabric/verbs/host_ports.h"
#include "runtime/fabric/verbs/rc_factory.h"
#include "tests/rig/sim/network.h"
#include "tests/rig/sim/rdma.h"
#include "tests/support/log_lines.h"
#include "tests/support/process_limit.h"

namespace nccl_ha::test {
namespace {

using fabric::Attachment;

/// The provider of a host with two simulated RDMA devices that take DMA-BUF descriptors.
class RegistrationElsewhere : public testing::Test {
 protected:
  void SetUp() override {
    sim::DeviceTraits traits;
    traits.gpu = true;
    std::vector<fabric::verbs::UsablePort> ports;
    for (uint8_t i = 0; i < 2; ++i) {
      nics_[i] = std::make_unique<sim::RdmaNic>(network_, conditions_, 5 + i,
                                                std::vector{sim::ip(10, i, 0, 1)},
                                                "simrdma" + std::to_string(i), i, traits);
      auto port = nics_[i]->open(Config{}, "sim" + std::to_string(i));
      ASSERT_TRUE(port) << port.error().message();
      ports.push_back(std::move(*port));
    }
    Config config;
    config.fabric = "auto";
    fabric::Provider::Sources sources;
    sources.standard.rdma = [&](fabric::NicBoard& board) {
      return std::make_unique<fabric::verbs::HostPorts>(std::move(ports), 1, board);
    };
    auto provider = fabric::Provider::make(config, {}, 1, sources);
    ASSERT_TRUE(provider) << provider.error().message();
    provider_ = std::move(*provider);
    descriptor_ = eventfd(0, EFD_CLOEXEC);  // a simulated device only wants one
  }
  void TearDown() override { close(descriptor_); }

  Result<fabric::Registration> add_dmabuf() {
    return provider_->add_dmabuf(first_, 0, memory_.data(), memory_.size(), 0, descriptor_);
  }
  Result<fabric::RegionKeys> elsewhere(const fabric::Registration& memory) {
    return provider_->keys_on(second_, 0, first_, memory.remote_key, false);
  }

  static constexpr Attachment first_{0, fabric::verbs::rc_kind};
  static constexpr Attachment second_{1, fabric::verbs::rc_kind};
  ManualClock clock_;
  sim::Network network_{clock_, 3};
  sim::RdmaNic::Conditions conditions_;
  std::array<std::unique_ptr<sim::RdmaNic>, 2> nics_;
  std::unique_ptr<fabric::Provider> provider_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
  int descriptor_ = -1;
};

// The preset that looks at addresses also looks at virtual calls, for which its library probes
// memory through a pipe: it takes a process without descriptors for one whose objects are broken.
#if !defined(__SANITIZE_ADDRESS__)
TEST_F(RegistrationElsewhere, ADescriptorThatCannotBeKeptIsMissedByTheOtherDeviceOnly) {
  LogLines log;
  Result<fabric::Registration> own = add_dmabuf();  // with a copy
  ASSERT_TRUE(own) << own.error().message();
  ASSERT_TRUE(elsewhere(*own)) << "it can be kept, and nothing is tested";
  ASSERT_TRUE(provider_->remove_memory(*own));
  EXPECT_EQ(log.count("no path over another device"), 0U);

  rlim_t limit = 0;
  {
    const ProcessLimit few(RLIMIT_NOFILE, static_cast<rlim_t>(descriptor_) + 1);
    limit = few.value();
    ASSERT_EQ(fcntl(descriptor_, F_DUPFD_CLOEXEC, 0), -1) << "there is room for another one";
    ASSERT_EQ(errno, EMFILE);
    own = add_dmabuf();
    ASSERT_TRUE(own) << own.error().message();
    const auto keys = elsewhere(*own);
    ASSERT_FALSE(keys);
    const std::string why = keys.error().message();
    for (const std::string part :
         {"DMA-BUF", "Too many open files", "RLIMIT_NOFILE", "ulimit -n"}) {
      EXPECT_NE(why.find(part), std::string::npos) << why;
    }
    EXPECT_NE(why.find("may have " + std::to_string(limit)), std::string::npos) << why;
  }
  EXPECT_EQ(log.count("no path over another device"), 1U) << log.text();
  EXPECT_EQ(log.count("ulimit -n"), 1U) << log.text();
  EXPECT_EQ(nics_[1]->verbs().calls(sim::Verb::register_memory), 0U)
      << "GPU memory was registered by its address";

  // Somebody registers it again, and now there is room.
  const auto again = add_dmabuf();
  ASSERT_TRUE(again);
  EXPECT_TRUE(elsewhere(*again)) << "the second descriptor was not taken";
  EXPECT_TRUE(provider_->remove_memory(*own));
  EXPECT_TRUE(elsewhere(*again)) << "the first user took it along";
  EXPECT_TRUE(provider_->remove_memory(*again));
  EXPECT_FALSE(elsewhere(*again)) << "nobody uses it";
}
#endif

TEST_F(RegistrationElsewhere, TheLastQuarterOfAllDescriptorsIsLeftToTheJob) {
  const auto next = [&] {
    const int free = fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
    close(free);
    return free;
  };
  const int first = next();
  ASSERT_GT(first, 0);
  // So much that the next copy is the first one in the last quarter.
  const ProcessLimit limit(RLIMIT_NOFILE, static_cast<rlim_t>(first) * 4 / 3);
  ASSERT_EQ(next(), first) << "there is room for one, which the job may need";
  const auto without = add_dmabuf();
  ASSERT_TRUE(without) << without.error().message();
  EXPECT_EQ(next(), first) << "a copy was kept";
  EXPECT_FALSE(elsewhere(*without));
  EXPECT_TRUE(provider_->remove_memory(*without));
}

TEST_F(RegistrationElsewhere, NoRoomToLockMemoryNamesTheLimit) {
  const auto own = provider_->add_memory(first_, 0, memory_.data(), memory_.size(), false);
  ASSERT_TRUE(own);
  const ProcessLimit little(RLIMIT_MEMLOCK, 48 * 1024);
  nics_[1]->verbs().force(sim::Verb::register_memory, 1, ENOMEM);
  nics_[1]->verbs().force(sim::Verb::register_memory, 2, EFAULT);
  const auto refused = elsewhere(*own);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("simrdma1"), std::string::npos);
  EXPECT_NE(refused.error().message().find(
                "only 48 KiB may be locked: raise it with ulimit -l unlimited"),
            std::string::npos)
      << refused.error().message();
  const auto other = elsewhere(*own);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message().find("ulimit"), std::string::npos)
      << "no limit is to blame: " << other.error().message();
  EXPECT_TRUE(elsewhere(*own)) << "it is not tried again";
  EXPECT_TRUE(provider_->remove_memory(*own));
}

}  // namespace
}  // namespace nccl_ha::test
