// What every command that prints JSON prints alike.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/base/result.h"

namespace nccl_ha::tools {

/// `body` with "command", "version", "commit" and "date" (UTC, ISO 8601), where it has none of its
/// own.
nlohmann::json document(const std::string& command, nlohmann::json body);

/// With a newline at its end; what is no UTF-8 is replaced.
std::string document_text(const nlohmann::json& whole);
/// Prints one document to standard output; what is no UTF-8 is replaced.
void print_document(const nlohmann::json& whole);

/// The document of a command that could not do its work: "ok" is false, "error" says why.
void print_failure(const std::string& command, const std::string& error);

/// The calling process's words ask for JSON on standard output: --json, of perf `--json -`.
bool asks_for_json(int argc, const char* const* argv);

/// Before long work: an error where its results cannot be written into `path`, which a user named;
/// a disk that fills meanwhile is told at the end.  Empty, and "-" for standard output: nothing is
/// wrong.
Result<void> can_be_written(const std::string& path);

/// Where to say what was written into `path`: standard output, or standard error where that is
/// what `path` leads to.
std::FILE* beside(const std::string& path);

/// The errno of a write to standard output that failed; finish_output() tells of it.
void note_output_error(int error);

/// Writes out what is buffered; finish_output() tells of what went wrong.
void flush_output();
/// The same at the end.  False, and a line on standard error, where standard output took
/// less than all of it: a full disk, say.
bool finish_output();

}  // namespace nccl_ha::tools
