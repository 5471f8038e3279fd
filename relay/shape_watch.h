// Tells in the log when the hosts do not have the shape that HA_NCCL_MESH_TOPOLOGY names.
#pragma once

#include <memory>
#include <string>

#include "relay/shape.h"
#include "relay/topology_board.h"
#include "runtime/engine/actor.h"
#include "runtime/engine/context.h"

namespace nccl_ha::relay {

/// Once each time that something else is wrong.
class ShapeWatch final : public Actor {
 public:
  struct Options {
    std::shared_ptr<const TopologyBoard> board;
    Shape expected{};
    Duration apart{};  ///< between looks, and until the first one: hosts are heard by then; 0: one
  };
  explicit ShapeWatch(Options options) : options_(std::move(options)) {}
  ~ShapeWatch() override { stop(); }

  const char* name() const override { return "shape-watch"; }
  void start(Context& context) override;
  void on(const Message& message) override { (void)message; }
  void stop() override;

 private:
  void look();

  Options options_;
  Context* context_ = nullptr;
  Timer timer_;
  std::shared_ptr<const MeshView> judged_;
  std::string told_;  ///< what is wrong, as the log has it already
};

}  // namespace nccl_ha::relay
