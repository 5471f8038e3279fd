#include <fmt/format.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/host.h"
#include "runtime/base/whole_file.h"
#include "runtime/telemetry/trace_dump.h"
#include "tools/commands.h"
#include "tools/common/output.h"
#include "tools/common/process.h"
#include "tools/common/refusal.h"
#include "tools/report/mask.h"
#include "tools/top/reading.h"
#include "tools/trace/sources.h"

namespace nccl_ha::tools {
namespace {

namespace files = std::filesystem;

constexpr Refusal refuse_report{"nccl-ha report", 2};
/// Of a log the end is taken: that is where the trouble is.
constexpr uint64_t log_bytes_max = uint64_t{32} << 20;
/// It holds what only the owners of counter files, dumps and logs may read.
constexpr mode_t archive_mode = 0600;

struct ReportOptions {
  std::string output = "nccl-ha-report.tar.gz";
  std::vector<std::string> logs;
  bool mask = false;
};

/// A folder that is gone at the end.
struct DraftFolder {
  DraftFolder() {
    std::error_code error;
    const files::path parent = files::temp_directory_path(error);
    std::string name = (error ? files::path("/tmp") : parent) / "nccl-ha-report-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      refuse_report(fail(Errc::system, fmt::format("no folder for the parts, {}", name), errno));
    }
    path = name;
  }
  ~DraftFolder() {
    std::error_code error;
    files::remove_all(path, error);
  }
  DraftFolder(const DraftFolder&) = delete;
  DraftFolder& operator=(const DraftFolder&) = delete;
  std::string path;
};

/// Collects texts and dumps; what cannot be had is noted and left out.  Texts are written at the
/// end: then the names of all hosts are known that a mask takes out.
class Collector {
 public:
  Collector(std::string folder, bool masked) : folder_(std::move(folder)), masked_(masked) {
    mask_.add_host(host_name());
  }

  AddressMask& mask() { return mask_; }
  void text(const std::string& name, std::string content) {
    mask_.add_hosts_of(content);
    texts_.emplace_back(name, std::move(content));
  }
  /// What a program prints.
  void output_of(const std::string& name, const std::vector<std::string>& command) {
    const auto ended = run_process(command);
    if (!ended) {
      note(name, ended.error().message());
      return;
    }
    text(name, ended->out + ended->err);
  }
  void copy_log(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      note(path, "it cannot be read");
      return;
    }
    file.seekg(0, std::ios::end);
    const auto size = static_cast<uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
    file.seekg(static_cast<std::streamoff>(size > log_bytes_max ? size - log_bytes_max : 0));
    std::string content((std::istreambuf_iterator<char>(file)), {});
    // A log's name may hold that of its host.
    text(masked_ ? fmt::format("log-{}.txt", ++logs_)
                 : fmt::format("log-{}-{}", ++logs_, files::path(path).filename().string()),
         std::move(content));
  }
  /// A dump holds addresses in its labels, so with a mask its text is taken.
  void trace(const std::string& program, const std::string& from, const std::string& name) {
    if (masked_) {
      output_of(name + ".txt", {program, "trace", "show", from});
    } else {
      output_of(name + ".dump.txt", {program, "trace", "dump", from, "-o", folder_ + "/" + name});
    }
    output_of(name + ".summary.txt", {program, "trace", "summary", from});
  }
  /// The hosts of a dump.
  void add_hosts_in(const std::string& dump, const std::string& counters_dir) {
    if (const auto sources = read_traces({dump}, counters_dir)) {
      for (const TraceSource& source : *sources) {
        mask_.add_host(source.snapshot.host);
      }
    }
  }
  void end() {
    for (const auto& [name, content] : texts_) {
      write(name, content);
    }
    write("missing.txt", missing_.empty() ? "nothing is missing\n" : missing_);
  }

 private:
  void write(const std::string& name, const std::string& content) {
    const auto written = write_file(folder_ + "/" + (masked_ ? mask_.mask(name) : name),
                                    masked_ ? mask_.mask(content) : content);
    note(name, written ? "" : written.error().message());
  }
  void note(const std::string& name, const std::string& wrong) {
    if (!wrong.empty()) {
      missing_ += fmt::format("{}: {}\n", name, wrong);
    }
  }
  const std::string folder_;
  const bool masked_;
  AddressMask mask_;
  std::vector<std::pair<std::string, std::string>> texts_;  ///< name and content
  std::string missing_;
  size_t logs_ = 0;
};

void collect_traces(Collector& all, const std::string& program, const Config& config) {
  const auto reading = read_all_counters(config.counters_dir, {});
  if (!reading) {
    return;  // the folder's setting is empty; settings.txt says so
  }
  for (const ProcessCounterFile& file : reading->files) {
    all.mask().add_host(file.snapshot.host);
    // A process may have several files: one of each copy of the plugin.
    all.trace(program, file.path,
              fmt::format("process-{}-{}.trace", file.snapshot.pid, file.snapshot.instance));
  }
  const std::string folder = config.trace_dir.empty() ? config.counters_dir : config.trace_dir;
  std::error_code error;
  for (files::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("nccl-ha-") && name.ends_with(trace_ending)) {
      all.add_hosts_in(entry->path().string(), config.counters_dir);
      all.trace(program, entry->path().string(), name);
    }
  }
}

void make_report(const ReportOptions& options) {
  const DraftFolder folder;
  std::vector<std::string> warnings;
  const Config config = refuse_report.need(load_config(Environment{}, &warnings));
  std::error_code error;
  const std::string program = files::read_symlink("/proc/self/exe", error).string();
  Collector all(folder.path, options.mask);
  utsname kernel{};
  uname(&kernel);
  all.text("versions.txt", fmt::format("nccl-ha {}\n{} {} {} {}\n", NHA_VERSION, kernel.sysname,
                                       kernel.release, kernel.version, kernel.machine));
  all.output_of("os-release.txt", {"cat", "/etc/os-release"});
  all.output_of("settings.txt", {program, "info", "--env"});
  all.output_of("host.json", {program, "info", "--json"});
  all.output_of("counters.json", {program, "stat", "--json", "--interval", "0.2"});
  all.output_of("counters.prom", {program, "stat", "--prometheus"});
  all.output_of("interfaces.txt", {"ip", "-s", "address"});
  all.output_of("routes.txt", {"ip", "route", "show", "table", "all"});
  collect_traces(all, program, config);
  for (const std::string& log : options.logs) {
    all.copy_log(log);
  }
  all.end();
  const std::string archive =
      refuse_report.need(must_run({"tar", "-czf", "-", "-C", folder.path, "."}));
  refuse_report.need(write_file(options.output, std::as_bytes(std::span(archive)), archive_mode));
  size_t parts = 0;
  for ([[maybe_unused]] const auto& entry : files::directory_iterator(folder.path)) {
    ++parts;
  }
  fmt::print(beside(options.output), "{}: {} files, {} bytes{}\n", options.output, parts,
             archive.size(), options.mask ? "; addresses and names of hosts are masked" : "");
}

}  // namespace

void add_report(CLI::App& app) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* report = app.add_subcommand(
      "report", "Versions, settings, devices, counters, traces and logs in one file");
  report->add_option("-o,--output", options->output, "file to write")->capture_default_str();
  report->add_option("--log", options->logs, "a log of the job (several times)");
  report->add_flag("--mask", options->mask,
                   "addresses and names of hosts become address-1, host-1 and so on");
  report->callback([options] { make_report(*options); });
}

}  // namespace nccl_ha::tools
