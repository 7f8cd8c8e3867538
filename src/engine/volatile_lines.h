// engine/volatile_lines.h: what changes with every request in the head of an agent's prompt, taken out by rule.
// Idea:   one clock in the system message makes all text behind it new to a prefix cache. Claude Code's `cch=` digits,
//         times of day and a git status are for nobody but the log; `--fold-volatile` takes them out.
// Rules:  in messages of role system and developer only, line by line:
//           cch=9f3a1c        the digits become 0
//           a time of day     12:01, 12:01:33.512 PM, T12:01:33Z: the line's only one, right behind one of the words
//                             time, clock, now, date, today, timestamp, or a heading with one ("Local time (Bonn):");
//                             any right behind a date that stands so; and right before "now". It goes, with the T or
//                             the space before it; the date stays
//           1763981234567     9 digits or more right behind "timestamp" become 0
//           git status        lines as git writes them (a code, a path) behind "Status:" or "gitStatus" (a line by
//                             itself) go
// Cost:   one pass over the system messages.
// Not here: other roles: a user's question about a time is left as it is.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kvilt {

// Returns how many lines changed.
int fold_volatile_text(std::string& text);
// The same in an OpenAI chat's messages; anything of another shape is left as it is.
int fold_volatile_lines(nlohmann::ordered_json& messages);

}  // namespace kvilt
