// Tries a lab's rails with a program that is not ours, so that a broken lab is told from a broken
// plugin.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/supervisor.h"

namespace nccl_ha::tools::lab {

/// Runs ibv_rc_pingpong (package ibverbs-utils) once over every cable, and from the first host of
/// every switch to each of the others.
class RdmaCheck final : public Precheck {
 public:
  /// `topology` must outlive it.
  explicit RdmaCheck(const Topology& topology) : topology_(topology) {}

  Result<void> start(Backend& backend, std::function<void(std::optional<Error>)> done) override;
  void output(size_t host, Stream stream, std::string_view bytes) override;
  void ended(uint64_t job, int status) override;
  std::string doing() const override;

 private:
  struct Pair {
    size_t server;  ///< ports
    size_t client;
  };

  void next();
  Result<void> start_client();
  void finish(std::optional<Error> error);
  std::vector<std::string> command(size_t port, const std::string& more) const;

  const Topology& topology_;
  Backend* backend_ = nullptr;
  std::function<void(std::optional<Error>)> done_;
  std::vector<Pair> pairs_;
  size_t at_ = 0;
  uint64_t server_ = 0;
  uint64_t client_ = 0;
  int ended_ = 0;
  int attempts_ = 0;
  std::string server_text_;
  std::string client_text_;
};

}  // namespace nccl_ha::tools::lab
