#include "dynatrain/apps/output.h"

#include <cstdio>
#include <fstream>

#include "dynatrain/base/json.h"

namespace dynatrain::apps {

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return Unavailable("{}: cannot write it", path);
  return Status::Ok();
}

Status ShowJson(const std::string& where, const nlohmann::json& json) {
  if (where.empty()) return Status::Ok();
  const std::string text = DumpJson(json, 2) + "\n";
  if (where != "-") return WriteFile(where, text);
  std::fputs(text.c_str(), stdout);
  return Status::Ok();
}

int ExitCode(const char* command, const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "dynatrain %s: %s\n", command, status.ToString().c_str());
  return 1;
}

}  // namespace dynatrain::apps
