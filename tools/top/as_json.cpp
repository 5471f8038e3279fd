#include <nlohmann/json.hpp>

#include "tools/common/output.h"
#include "tools/top/stat.h"

namespace nccl_ha::tools {

void print_stat_json(const std::vector<CounterRow>& rows, const SumCheck& sums,
                     const std::vector<std::string>& unreadable) {
  using nlohmann::json;
  json all = json::array();
  for (const CounterRow& row : rows) {
    json one{{"kind", to_text(row.kind)},
             {"pid", row.pid},
             {"id", row.id},
             {"name", row.name},
             {"depth", row.depth},
             {"bytes_sent", row.sent},
             {"bytes_received", row.received},
             {"sent_per_s", row.sent_rate},
             {"received_per_s", row.received_rate},
             {"open", row.open},
             {"again", row.again},
             {"again_per_s", row.again_rate},
             {"state", row.state}};
    if (row.share >= 0) {
      one["share"] = row.share;
    }
    if (row.idle >= 0) {
      one["idle"] = row.idle;
    }
    all.push_back(std::move(one));
  }
  print_document(document("stat", {{"rows", all},
                                   {"unreadable", unreadable},
                                   {"sums", {{"checked", sums.checked}, {"wrong", sums.wrong}}}}));
}

}  // namespace nccl_ha::tools
