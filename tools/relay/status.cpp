#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "runtime/base/host.h"
#include "runtime/base/version.h"
#include "tools/common/metrics_text.h"
#include "tools/relay/relay_view.h"

namespace nccl_ha::tools {
namespace {

using RelayJson = nlohmann::json;

std::string html(const std::string& text) {
  std::string out;
  for (const char one : text) {
    out += one == '<' ? "&lt;" : one == '>' ? "&gt;" : one == '&' ? "&amp;" : std::string(1, one);
  }
  return out;
}

/// What the node counts, by the names in counters.def.
template <class Each>
void each_relay_counter(const RelayView& view, const Each& each) {
  if (view.node == nullptr) {
    return;
  }
  const CounterScopeInfo& scope = counter_scopes()[static_cast<size_t>(CounterScope::relay)];
  const auto* values = reinterpret_cast<const Counter*>(&view.node->counts());
  for (size_t i = 0; i < scope.counters.size(); ++i) {
    each(scope.counters[i], values[i].get());
  }
}

std::string name_of(const RelayView& view, relay::NodeId node) {
  return view.routes != nullptr ? view.routes->name_of(node) : relay::text(node);
}

/// Who is heard at the other end of each cable.
RelayJson neighbours_json(const RelayView& view, const relay::Discovery& discovery) {
  RelayJson all = RelayJson::array();
  for (const relay::Neighbour& one : discovery.neighbours().all()) {
    std::string interface = std::to_string(one.interface);
    for (const relay::MeshInterface& own : discovery.neighbours().interfaces()) {
      interface = own.number == one.interface ? own.name : interface;
    }
    const auto address = IpAddress::from_sockaddr(one.address.get());
    all.push_back({{"host", name_of(view, one.node)},
                   {"node", relay::text(one.node)},
                   {"interface", interface},
                   {"address", address ? address->text() : ""},
                   {"both_ways", one.two_way}});
  }
  return all;
}

RelayJson session_json(const RelayView& view, const relay::RelaySession& session) {
  RelayJson out{
      {"session", fmt::format("{:016x}", session.number())},
      {"from", name_of(view, session.origin())},
      {"from_node", relay::text(session.origin())},
      {"to", name_of(view, session.destination())},
      {"to_node", relay::text(session.destination())},
      {"open", session.carries()},
      {"slots", session.share().slots},
      {"chunk_bytes", session.share().chunk_bytes},
      {"hops",
       {session.hop_text(relay::RelaySession::up), session.hop_text(relay::RelaySession::down)}},
      {"directions", RelayJson::array()}};
  for (size_t direction = 0; direction < 2; ++direction) {
    const relay::Forwarder::Counts& counts = session.counts(direction);
    out["directions"].push_back({{"frames", counts.frames},
                                 {"bytes", counts.bytes},
                                 {"waits", counts.waits},
                                 {"lying_here", session.held(direction)}});
  }
  return out;
}

}  // namespace

nlohmann::json relay_status(const RelayView& view) {
  RelayJson out{
      {"version", version_number()},
      {"host", host_name()},
      {"pid", getpid()},
      {"node", relay::text(view.self)},
      {"uptime_s", std::chrono::duration<double>(view.context->now() - view.started).count()},
      {"relays", view.node != nullptr && view.node->port() != 0},
      {"port", view.node != nullptr ? view.node->port() : 0},
      {"keyed", view.keyed},
      {"counters", RelayJson::object()},
      {"sessions", RelayJson::array()}};
  each_relay_counter(
      view, [&](const CounterInfo& info, uint64_t value) { out["counters"][info.name] = value; });
  if (view.node != nullptr) {
    out["pool_bytes"] = view.node->pool().bytes();
    for (const relay::RelaySession* session : view.node->sessions()) {
      out["sessions"].push_back(session_json(view, *session));
    }
  }
  if (const relay::Discovery* discovery = view.discovery->discovery()) {
    out["neighbours"] = neighbours_json(view, *discovery);
    out["discovery"] = {{"hosts", discovery->states().size()},
                        {"neighbours", discovery->neighbours().all().size()},
                        {"packets_sent", discovery->counts().packets_sent},
                        {"packets_received", discovery->counts().packets_received},
                        {"refused", discovery->counts().refused},
                        {"forged", discovery->seal_counts().forged},
                        {"repeated", discovery->seal_counts().repeated}};
  }
  return out;
}

std::string relay_metrics(const RelayView& view) {
  MetricsText out("nccl_ha_relay_");
  each_relay_counter(view, [&](const CounterInfo& info, uint64_t value) {
    if (info.kind == CounterKind::sum) {
      out.counter(fmt::format("{}_total", info.name), info.help, value);
    } else {
      out.gauge(info.name, info.help, static_cast<double>(value));
    }
  });
  out.gauge("up_seconds", "how long the node has run",
            std::chrono::duration<double>(view.context->now() - view.started).count());
  if (const relay::Discovery* discovery = view.discovery->discovery()) {
    out.gauge("hosts", "hosts that discovery knows",
              static_cast<double>(discovery->states().size()));
    out.counter("discovery_refused_total",
                "discovery packets that are damaged, or of an unknown host",
                discovery->counts().refused);
    out.counter("discovery_forged_total", "discovery packets without the cluster's key",
                discovery->seal_counts().forged);
    out.counter("discovery_repeated_total", "discovery packets received again",
                discovery->seal_counts().repeated);
  }
  return out.text();
}

std::string relay_page(const RelayView& view) {
  // Hosts' names are theirs; all else is this process's own: numbers, and texts of this program.
  std::string rows;
  each_relay_counter(view, [&](const CounterInfo& info, uint64_t value) {
    rows += fmt::format("<tr><td>{}<td class=n>{}<td>{}\n", info.name, value, info.help);
  });
  std::string sessions;
  if (view.node != nullptr) {
    for (const relay::RelaySession* session : view.node->sessions()) {
      sessions +=
          fmt::format("<tr><td>{}<td>{}<td class=n>{}<td class=n>{}<td>{}\n",
                      html(name_of(view, session->origin())),
                      html(name_of(view, session->destination())), session->counts(0).bytes,
                      session->counts(1).bytes, session->carries() ? "open" : "being set up");
    }
  }
  std::string neighbours;
  if (const relay::Discovery* discovery = view.discovery->discovery()) {
    for (const RelayJson& one : neighbours_json(view, *discovery)) {
      neighbours += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}\n", html(one["host"]),
                                html(one["interface"]), html(one["address"]),
                                one["both_ways"] ? "both ways" : "heard, does not hear this host");
    }
  }
  return fmt::format(
      "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=2><title>nccl-ha relay "
      "{0}</title><style>body{{font:14px system-ui,sans-serif;margin:2em}}td,th{{padding:2px "
      "12px;text-align:left}}.n{{text-align:right}}</style><h1>Relay node {0}</h1><p>{1}, "
      "{2}.</p><h2>Neighbours</h2><table><tr><th>host<th>interface<th>address<th>\n{5}</table>"
      "<h2>Counters</h2><table><tr><th>counter<th>value<th>\n{3}</table><h2>Paths</"
      "h2><table><tr><th>from<th>to<th>bytes there<th>bytes "
      "back<th>\n{4}</table><p><a href=/metrics>metrics</a>, <a href=/status.json>as JSON</a>",
      html(name_of(view, view.self)),
      view.node == nullptr     ? "This host does not relay"
      : view.node->draining()  ? "It ends, and takes no more paths"
      : view.node->port() == 0 ? "It cannot listen and relays for nobody"
                               : "It relays",
      view.keyed ? "for hosts with the cluster's key" : "for whoever is on one of its cables", rows,
      sessions, neighbours);
}

std::optional<HttpAnswer> relay_answer(const RelayView& view, const std::string& path) {
  if (path == "/") {
    return HttpAnswer{"text/html; charset=utf-8", relay_page(view)};
  }
  if (path == "/metrics") {
    return HttpAnswer{"text/plain; version=0.0.4; charset=utf-8", relay_metrics(view)};
  }
  if (path == "/status.json") {
    return HttpAnswer{"application/json",
                      relay_status(view).dump(-1, ' ', false, RelayJson::error_handler_t::replace)};
  }
  return std::nullopt;
}

}  // namespace nccl_ha::tools
