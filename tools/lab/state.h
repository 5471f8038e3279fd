// Where the labs of this machine keep their state, and how other processes talk to one.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/common/process.h"

namespace nccl_ha::tools::lab {

/// A lab's directory.  It is locked for as long as the lab's process lives, so a directory that can
/// be locked is what a crash left.
class LabDirectory {
 public:
  /// Makes the directory, taking over what a crashed lab of that name left.
  static Result<LabDirectory> create(const std::string& name);
  LabDirectory(LabDirectory&&) = default;
  LabDirectory& operator=(LabDirectory&&) = default;
  ~LabDirectory();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path control() const { return path_ / "control"; }

 private:
  LabDirectory(std::filesystem::path path, Fd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::filesystem::path path_;
  Fd lock_;
};

struct KnownLab {
  std::string name;
  std::filesystem::path path;
  bool running = false;
};

/// This user's labs, those that crashed included, by name.
std::vector<KnownLab> known_labs();

/// Removes what crashed labs left, or the one of that name; gives the names of those removed.
std::vector<std::string> remove_crashed_labs(const std::string& name);

/// The running lab of that name; with an empty name the only one that runs.  In a guest it is the
/// lab that the guest belongs to, whatever the name.
Result<KnownLab> running_lab(const std::string& name);

/// Sends one request to a lab and waits for its answer.  Requests and answers are JSON objects on
/// one line; an answer has "error" when the request was refused.
Result<nlohmann::json> ask_lab(const KnownLab& lab, const nlohmann::json& request);

}  // namespace nccl_ha::tools::lab
