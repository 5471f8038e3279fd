#include "actors/session_reader.h"

namespace nccl_ha {

std::optional<SessionReader::Part> SessionReader::next() {
  while (!malformed_) {
    const auto message = reader_.next();
    if (!message) {
      return std::nullopt;
    }
    if (message->type != ControlType::of) {
      // `share` is of no connection, and no other message of a stream that is shared already.
      malformed_ = message->type == ControlType::share && named_ != 0;
      return malformed_ ? std::nullopt : std::optional(Part{std::exchange(named_, 0), *message});
    }
    malformed_ = named_ != 0 || message->number == 0 || !message->payload.empty();
    named_ = message->number;
  }
  return std::nullopt;
}

}  // namespace nccl_ha
