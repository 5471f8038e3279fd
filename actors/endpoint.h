// What a caller holds of a connection and shares with its actor.
#pragma once

#include <atomic>
#include <memory>

#include "actors/driver.h"
#include "actors/receive_channel.h"
#include "actors/send_channel.h"

namespace nccl_ha {

/// The connecting side.
struct SendEndpoint {
  SendEndpoint(uint64_t domain, fabric::Attachment at, Worker& worker, Engine& engine,
               const fabric::RailDevices& devices = {})
      : driver(worker, engine, false),
        channel(domain, at, &driver, worker.context().counters().place(), devices) {}
  Driver driver;
  SendChannel channel;
};

/// The accepting side, whose receives wait for the peer's caller.
struct ReceiveEndpoint {
  ReceiveEndpoint(uint64_t domain, fabric::Attachment at, Worker& worker, Engine& engine,
                  const fabric::RailDevices& devices = {})
      : driver(worker, engine, true),
        channel(domain, at, &driver, worker.context().counters().place(), devices) {}
  Driver driver;
  ReceiveChannel channel;
  std::atomic<ReceiveEndpoint*> next_ready{nullptr};  ///< link in its listen's queue
  std::shared_ptr<ReceiveEndpoint> self;  ///< keeps an unaccepted connection alive in that queue
};

}  // namespace nccl_ha
