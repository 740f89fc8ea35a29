#include "dynatrain/apps/log_directory.h"

#include <cstdlib>
#include <filesystem>

namespace dynatrain::apps {

namespace fs = std::filesystem;

Result<std::unique_ptr<LogDirectory>> LogDirectory::Make(const std::string& wanted) {
  std::error_code error;
  if (!wanted.empty()) {
    fs::create_directories(wanted, error);
    if (error) return Unavailable("--log-dir {}: cannot make it: {}", wanted, error.message());
    return std::make_unique<LogDirectory>(wanted, /*temporary=*/false);
  }
  std::string name = fs::temp_directory_path(error) / "dynatrain-XXXXXX";
  if (error || ::mkdtemp(name.data()) == nullptr) {
    return Unavailable("cannot make a temporary directory for logs; give --log-dir DIR");
  }
  return std::make_unique<LogDirectory>(name, /*temporary=*/true);
}

LogDirectory::~LogDirectory() {
  std::error_code ignored;
  if (temporary_) fs::remove_all(path_, ignored);
}

}  // namespace dynatrain::apps
