// server/tool_namespaces.h: Responses' tools of type `namespace`: functions and custom tools under a common name, as
// Codex groups its sub-agents' tools and those of MCP servers.
// Idea:       a template knows tools by one name. So to the model a tool of a namespace is NAMESPACE__NAME, and a call
//             of that is told with both names apart again, as its client finds it.
// Invariants: a name that two namespaces, or a namespace and a tool without one, would make is refused where tools are
//             read (responses_request.cc), so a call belongs to one tool.
#pragma once

#include <map>
#include <string>

namespace kvilt::server {

struct NamespacedTool {
  std::string space, name;
};
using ToolNamespaces = std::map<std::string, NamespacedTool>;  // by the model's name for the tool

// MCP servers' namespaces may end with the mark themselves (mcp__files__).
inline std::string name_for_model(const std::string& space, const std::string& name) {
  return space + (space.ends_with("__") ? "" : "__") + name;
}

}  // namespace kvilt::server
