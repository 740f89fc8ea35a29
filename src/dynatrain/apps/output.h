// What subcommands leave behind: files, JSON, exit codes.
#ifndef DYNATRAIN_APPS_OUTPUT_H_
#define DYNATRAIN_APPS_OUTPUT_H_

#include <string>

#include <nlohmann/json.hpp>

#include "dynatrain/base/status.h"

namespace dynatrain::apps {

// The help of a flag --json whose value goes to ShowJson.
inline constexpr char kJsonHelp[] = "JSON to standard output, or to a file with --json=FILE";

// Replaces the content of a file, or makes it. kUnavailable, naming the path.
Status WriteFile(const std::string& path, const std::string& text);

// Indented JSON to where --json says: nowhere (empty), standard output ("-"; main finds out whether
// that could be written) or a file.
Status ShowJson(const std::string& where, const nlohmann::json& json);

// 0, or 1 for an error, which is told on standard error: "dynatrain plan: invalid argument: ...".
int ExitCode(const char* command, const Status& status);

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_OUTPUT_H_
