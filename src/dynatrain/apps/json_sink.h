// JsonSink: where the JSON lines of a job go.
#ifndef DYNATRAIN_APPS_JSON_SINK_H_
#define DYNATRAIN_APPS_JSON_SINK_H_

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "dynatrain/base/status.h"

namespace dynatrain::apps {

// Not thread-safe. `where`: "-" is standard output, else a file; none: nowhere.
class JsonSink {
 public:
  static Result<JsonSink> Open(const std::optional<std::string>& where) {
    JsonSink sink;
    sink.to_stdout_ = where == "-";
    if (where && *where != "-") {
      sink.file_.open(*where, std::ios::trunc);
      if (!sink.file_) return Unavailable("--json={}: cannot write there", *where);
    }
    return sink;
  }
  void Write(const std::string& line) {
    if (to_stdout_) {
      failed_ |= std::printf("%s\n", line.c_str()) < 0 || std::fflush(stdout) != 0;
    } else if (file_.is_open()) {
      file_ << line << std::endl;
      failed_ |= !file_;
    }
  }
  // Whether every line was written.
  Status status() const {
    if (!failed_) return {};
    return Unavailable(
        "training went on, but JSON lines were lost: the disk is full or the reader gone");
  }

 private:
  bool to_stdout_ = false;
  bool failed_ = false;
  std::ofstream file_;
};

}  // namespace dynatrain::apps

#endif  // DYNATRAIN_APPS_JSON_SINK_H_
