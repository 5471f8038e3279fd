// The end of a command that could not do its work.
#pragma once

#include <CLI/Error.hpp>
#include <string>
#include <utility>

namespace nccl_ha::tools {

/// What Refusal throws: the command has printed nothing about it.
class Refused : public CLI::RuntimeError {
 public:
  Refused(std::string command, std::string error, int status)
      : CLI::RuntimeError(status), command_(std::move(command)), error_(std::move(error)) {}
  const std::string& command() const { return command_; }
  const std::string& error() const { return error_; }

 private:
  std::string command_;
  std::string error_;
};

}  // namespace nccl_ha::tools
