// What a user asks of a running lab, on the command line, in a script or through its socket.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "tools/lab/links.h"
#include "tools/lab/topology.h"

namespace nccl_ha::tools::lab {

enum class Verb : uint8_t { none, cut, heal, slow, lose, mtu, kill, show, stop };
const char* to_text(Verb verb);

struct Request {
  Verb verb = Verb::none;
  std::string target;  ///< link or host; empty: all links (heal) or nothing (show, stop)
  Side side;
  bool silent = false;  ///< cut: the carrier stays
  bool cable = false;   ///< heal: ends cuts only; rate, losses and MTU stay
  std::string lasts;    ///< cut: a time such as 200ms after which it is healed; empty: until then
  std::string amount;   ///< slow: a rate such as 100mbit; lose: a percentage; mtu: bytes
};

nlohmann::json to_json(const Request& request);
Result<Request> request_from_json(const nlohmann::json& from);
/// As a user would type it.
std::string to_text(const Request& request);

/// 2s or 250ms.
Result<Duration> parse_time(std::string_view text);
/// Bits per second of 100mbit, 2.5gbit, 64kbit.
Result<uint64_t> parse_rate(std::string_view text);
/// Parts of loss_whole of 1% or 0.5.
Result<uint32_t> parse_loss(std::string_view text);

/// Bytes of an IP packet.
Result<uint32_t> parse_mtu(std::string_view text);

/// What a link is to become when `request` is applied to it in `choice`'s directions.
Result<LinkState> changed(const LinkState& state, const LinkChoice& choice, const Request& request);

struct ScriptStep {
  Duration after{};  ///< from the start of the command
  Request request;
};

/// Reads "TIME VERB …" lines such as `2s cut rail0`, also separated by ';' or ','; '#' starts a
/// comment.  Times have a unit: ms or s.  The steps come ordered by time.
Result<std::vector<ScriptStep>> parse_script(std::string_view text);

}  // namespace nccl_ha::tools::lab
