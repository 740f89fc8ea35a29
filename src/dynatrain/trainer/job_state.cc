#include "dynatrain/trainer/job_state.h"

#include <charconv>

#include <fmt/format.h>

namespace dynatrain::trainer {
namespace {

// Takes `name` and a number off the front of `text`.
template <class T>
bool Take(std::string_view* text, std::string_view name, T* value) {
  if (!text->starts_with(name)) return false;
  text->remove_prefix(name.size());
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

}  // namespace

std::string JobState::ToBytes() const {
  return fmt::format("step={} samples={} seed={}", step, samples, seed);
}

Result<JobState> JobState::FromBytes(std::string_view bytes) {
  JobState state;
  std::string_view rest = bytes;
  if (!Take(&rest, "step=", &state.step) || !Take(&rest, " samples=", &state.samples) ||
      !Take(&rest, " seed=", &state.seed) || !rest.empty() || state.step < 0 || state.samples < 0) {
    return DataLoss("job state \"{}\" is not of the form step=N samples=N seed=N", bytes);
  }
  return state;
}

}  // namespace dynatrain::trainer
