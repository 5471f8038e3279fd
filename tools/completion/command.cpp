// nccl-ha complete: what the scripts for bash, zsh and fish ask.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/commands.h"
#include "tools/completion/candidates.h"
#include "tools/lab/request.h"
#include "tools/lab/state.h"

namespace nccl_ha::tools {
namespace {

using nlohmann::json;

/// Names of one kind in all labs that run: "links" or "hosts".
std::vector<std::string> names_in_labs(const char* kind) {
  std::vector<std::string> names;
  for (const lab::KnownLab& one : lab::known_labs()) {
    lab::Request show;
    show.verb = lab::Verb::show;
    const auto answer =
        one.running ? lab::ask_lab(one, to_json(show)) : Result<json>(json::object());
    if (!answer || !answer->contains(kind)) {
      continue;
    }
    for (const json& entry : (*answer)[kind]) {
      if (entry.contains("name") && entry["name"].is_string()) {
        names.push_back(entry["name"]);
      }
    }
  }
  return names;
}

std::vector<std::string> lab_names() {
  std::vector<std::string> names;
  for (const lab::KnownLab& one : lab::known_labs()) {
    names.push_back(one.name);
  }
  return names;
}

}  // namespace

void add_complete(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* complete = app.add_subcommand("complete", "What can follow: for shells");
  complete->group("");  // not in --help
  complete->add_option("words", *words, "After --: the words so far, the begun one last");
  complete->callback([&app, words] {
    if (words->empty()) {
      words->emplace_back();
    }
    const CompletionSources sources{lab_names, [] { return names_in_labs("links"); },
                                    [] { return names_in_labs("hosts"); }};
    for (const std::string& word : completion_candidates(app, *words, sources)) {
      std::printf("%s\n", word.c_str());
    }
  });
}

}  // namespace nccl_ha::tools
