#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/streams/admission.h"

namespace nccl_ha {
namespace {

struct Waiting {
  Origin origin;
};

Origin origin_at(const std::string& address) {
  sockaddr_storage at{};
  parse_address(address)->to_sockaddr(1, &at);
  return Origin::of(at);
}

std::vector<Waiting> who_came(const std::vector<std::string>& addresses) {
  std::vector<Waiting> all;
  for (const std::string& address : addresses) {
    all.push_back({origin_at(address)});
  }
  return all;
}

TEST(Admission, TheFirstOfTheLargestCrowdGivesWay) {
  const auto waiting = who_came({"10.0.0.9", "10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.2"});
  EXPECT_EQ(who_gives_way(waiting, origin_at("10.0.0.1")), 1U);
  EXPECT_EQ(who_gives_way(waiting, origin_at("10.0.0.2")), 2U);
  EXPECT_EQ(who_gives_way(waiting, origin_at("10.0.0.9")), 0U)
      << "as many as the others, and first";
  EXPECT_EQ(who_gives_way(waiting, origin_at("10.0.0.3")), 1U);
}

TEST(Admission, WhereEachIsAloneTheFirstOfAllGivesWay) {
  EXPECT_EQ(who_gives_way(who_came({"10.0.0.1", "10.0.0.2"}), origin_at("10.0.0.3")), 0U);
}

TEST(Admission, NobodyIsTurnedOutByAnotherHostsCrowd) {
  std::vector<std::string> addresses{"10.0.0.1"};
  addresses.resize(256, "10.0.0.66");
  auto waiting = who_came(addresses);
  for (int i = 0; i < 1000; ++i) {
    const Origin crowd = origin_at("10.0.0.66");
    waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(who_gives_way(waiting, crowd)));
    waiting.push_back({crowd});
  }
  EXPECT_EQ(waiting.front().origin, origin_at("10.0.0.1"));
}

TEST(Admission, AHostIsOneWhateverAddressOfItsNetworkItTakes) {
  EXPECT_EQ(origin_at("2001:db8:0:1::1"), origin_at("2001:db8:0:1:2:3:4:5"));
  EXPECT_NE(origin_at("2001:db8:0:1::1"), origin_at("2001:db8:0:2::1"));
  EXPECT_NE(origin_at("10.0.0.1"), origin_at("10.0.0.2"));
  sockaddr_storage link_local[2]{};
  for (int i = 0; i < 2; ++i) {
    parse_address("fe80::" + std::to_string(i + 1))->to_sockaddr(1, &link_local[i]);
  }
  EXPECT_NE(Origin::of(link_local[0]), Origin::of(link_local[1]));
  EXPECT_EQ(Origin::of(fail(Errc::system, "no address")), Origin{});
}

}  // namespace
}  // namespace nccl_ha
