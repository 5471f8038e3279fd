// Counters as rows of a table: of processes, workers, connections and paths.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/top/reading.h"

namespace nccl_ha::tools {

struct CounterRow {
  enum class Kind : uint8_t { process, worker, connection, path };
  Kind kind = Kind::process;
  size_t depth = 0;  ///< below how many others
  uint64_t id = 0;   ///< of its block
  uint32_t pid = 0;
  std::string name;
  uint64_t sent = 0;  ///< bytes of data
  uint64_t received = 0;
  double sent_rate = 0;  ///< bytes per second, between two readings
  double received_rate = 0;
  uint64_t open = 0;   ///< requests or writes under way
  uint64_t again = 0;  ///< segments, or chunks after a failover, that were sent once more
  double again_rate = 0;
  double share = -1;  ///< of the connection's weights, 0 to 1; below 0: none
  double idle = -1;   ///< of a worker's turns, 0 to 1; below 0: none
  std::string state;
};

/// Parents come before what belongs to them.  Without an earlier reading rates are 0.
std::vector<CounterRow> rows_of(const CounterReading& now, const CounterReading* before);

/// "process", "worker" and so on.
const char* to_text(CounterRow::Kind kind);

struct RowOrder {
  std::string sort = "name";  ///< name, sent, received, rate, open, again
  std::string filter;         ///< part of the name of a row, of what it belongs to, or below it
};
/// Rows that pass, those with the largest values first among rows of one parent.
std::vector<CounterRow> arranged(const std::vector<CounterRow>& rows, const RowOrder& order);

}  // namespace nccl_ha::tools
