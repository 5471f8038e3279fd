// What an agent knows of NICs that come later than itself.
#include <gtest/gtest.h>

#include <memory>

#include "runtime/engine/engine.h"
#include "runtime/streams/uv_streams.h"
#include "tests/support/own_network.h"
#include "tests/support/temporary_folder.h"
#include "tools/agent/nic_meter.h"

namespace nccl_ha::tools {
namespace {

using std::chrono::seconds;
using test::in_own_network;
using test::ip;
using test::lay_cable;

class Reports final : public TelemetrySender {
 public:
  void send_notices(TelemetryType, std::span<const FlowNotice>) override {}
  void send_reports(std::span<const NicReport> reports) override {
    last = {reports.begin(), reports.end()};
  }
  std::vector<NicReport> last;
};

TEST(NicMeter, ANicThatComesLaterIsKnownWithItsAddress) {
  EXPECT_EQ(
      in_own_network([] {
        const tests::TemporaryFolder folder;
        ManualClock clock;
        auto writer =
            HintWriter::create(*AgentDirectory::make(folder.path()), {.slots = 4}, clock.now());
        ASSERT_TRUE(writer.ok()) << writer.error().message();
        auto board =
            std::make_shared<FlowBoard>(std::move(*writer), 4, ha::SharePolicy::Options{}, nullptr);
        AgentSettings settings;
        settings.rails[0].interface = "late";
        Reports reports;
        auto engine = Engine::start_virtual(Config{}, clock, 1, [] { return *make_uv_streams(); });
        auto meter = std::make_unique<NicMeter>(board, reports, settings);
        const NicMeter& seen = *meter;
        ASSERT_TRUE(engine->worker(0).adopt(std::move(meter)));
        const auto pass = [&] {
          clock.advance(seconds(11));
          engine->worker(0).turn();
        };
        pass();
        EXPECT_TRUE(seen.rails()[0].silent);
        ASSERT_TRUE(lay_cable("late"));
        pass();
        EXPECT_FALSE(seen.rails()[0].silent);
        ASSERT_TRUE(ip("address add 10.9.8.7/24 dev late"));
        pass();
        pass();
        ASSERT_EQ(reports.last.size(), 1U);
        EXPECT_EQ(reports.last[0].address, (ha::HostAddress{4, {10, 9, 8, 7}}));
        engine.reset();
      }),
      0);
}

}  // namespace
}  // namespace nccl_ha::tools
