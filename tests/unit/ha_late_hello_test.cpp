#include <gtest/gtest.h>

#include "ha/late_hello.h"

namespace nccl_ha::ha {
namespace {

using std::chrono::milliseconds;

constexpr Instant hello_start{std::chrono::seconds(100)};

TEST(LateHello, AHelloInTimeThatIsTurnedDownIsNotSaidAgain) {
  LateHello late;
  late.on_dial(hello_start);
  late.on_hello(hello_start + milliseconds(999));
  EXPECT_FALSE(late.dial_again());
}

TEST(LateHello, ALateOneIsSaidAgainAFewTimes) {
  LateHello late;
  for (uint32_t i = 0; i < LateHello::redials_max; ++i) {
    late.on_dial(hello_start);
    late.on_hello(hello_start + milliseconds(1000));
    EXPECT_TRUE(late.dial_again());
  }
  EXPECT_FALSE(late.dial_again());
}

TEST(LateHello, WhatCountsIsTheLastAttempt) {
  LateHello late;
  late.on_dial(hello_start);
  late.on_hello(hello_start + milliseconds(5000));
  EXPECT_TRUE(late.dial_again());
  late.on_dial(hello_start + milliseconds(5000));
  late.on_hello(hello_start + milliseconds(5001));
  EXPECT_FALSE(late.dial_again());
}

}  // namespace
}  // namespace nccl_ha::ha
