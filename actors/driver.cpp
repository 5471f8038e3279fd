#include "actors/driver.h"

namespace nccl_ha {
namespace {

Message message_to(ActorId actor, ConnectionMessage kind) {
  Message message{};
  message.to = actor;
  message.kind = static_cast<uint32_t>(kind);
  return message;
}

}  // namespace

[[gnu::hot]] void Driver::serve_inline() {
  bool served = false;
  static_cast<void>(engine_.turn(
      *slot_, caller_,
      [&] {
        if (server_ != nullptr) [[likely]] {
          server_->on_submitted();
          served = true;
        }
      },
      answered_late_));
  if (!served) [[unlikely]] {
    ring(CallerNews::submitted);  // somebody else is turning the worker
  }
}

/// A mailbox without room needs no doorbell.  Its messages give their room back before the actor
/// hears them, so whoever finds none has left its news before the actor asks for it with one of
/// them: had the actor asked earlier, the room would be seen as well.
void Driver::send_doorbell() {
  if (address_) {
    static_cast<void>(address_.try_send(message_to(actor_, ConnectionMessage::doorbell)));
  }
}

bool Driver::suspect(uint32_t path) {
  Message message = message_to(actor_, ConnectionMessage::suspect);
  message.arg = path;
  return address_.try_send(message);
}

}  // namespace nccl_ha
