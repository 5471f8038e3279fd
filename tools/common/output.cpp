#include "tools/common/output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/version.h"

namespace nccl_ha::tools {
namespace {

/// errno of the first write to standard output that failed; 0: none did, or none said why.
int output_error = 0;

void note_output(bool written) {
  if (!written) {
    note_output_error(errno);
  }
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[sizeof "2026-01-01T00:00:00Z"] = "";
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

Result<void> can_be_written(const std::string& path) {
  if (path.empty() || path == "-") {
    return {};
  }
  struct stat info {};
  const bool there = stat(path.c_str(), &info) == 0;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  int error = 0;
  if (there && S_ISDIR(info.st_mode)) {
    error = EISDIR;
  } else if (!there || access(path.c_str(), W_OK) != 0) {
    // It is made there, or replaced.
    error = access(folder.c_str(), W_OK | X_OK) != 0 ? errno : 0;
  }
  return error == 0 ? Result<void>()
                    : fail(Errc::system, fmt::format("cannot write {}", path), error);
}

nlohmann::json document(const std::string& command, nlohmann::json body) {
  body.emplace("command", command);
  body.emplace("version", version_number());
  body.emplace("commit", version_commit());
  body.emplace("date", utc_now());
  return body;
}

std::string document_text(const nlohmann::json& whole) {
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void print_document(const nlohmann::json& whole) {
  const std::string text = document_text(whole);
  errno = 0;
  note_output(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

void print_failure(const std::string& command, const std::string& error) {
  print_document(document(command, {{"ok", false}, {"error", error}}));
}

bool asks_for_json(int argc, const char* const* argv) {
  const bool perf = argc > 1 && argv[1] == std::string_view("perf");
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      return false;
    }
    if (word == "--json=-" ||
        (word == "--json" && (!perf || (i + 1 < argc && argv[i + 1] == std::string_view("-"))))) {
      return true;
    }
  }
  return false;
}

std::FILE* beside(const std::string& path) {
  struct stat named {};
  struct stat out {};
  const bool same = stat(path.c_str(), &named) == 0 && fstat(STDOUT_FILENO, &out) == 0 &&
                    named.st_dev == out.st_dev && named.st_ino == out.st_ino;
  return same ? stderr : stdout;
}

void note_output_error(int error) { output_error = output_error == 0 ? error : output_error; }

void flush_output() {
  errno = 0;
  note_output(std::fflush(stdout) == 0);
}

bool finish_output() {
  const bool before = std::ferror(stdout) == 0;
  flush_output();
  if (std::ferror(stdout) == 0 && before) {
    return true;
  }
  errno = output_error;
  std::fprintf(stderr, "nccl-ha: standard output could not be written in full%s%s\n",
               errno == 0 ? "" : ": ", errno == 0 ? "" : std::strerror(errno));
  return false;
}

}  // namespace nccl_ha::tools
