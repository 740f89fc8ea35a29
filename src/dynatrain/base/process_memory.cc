#include "dynatrain/base/process_memory.h"

#include <fstream>
#include <string>

namespace dynatrain {

Result<ProcessMemory> ReadProcessMemory() {
  std::ifstream file("/proc/self/status");
  ProcessMemory memory;
  int found = 0;
  for (std::string name; file >> name;) {
    ByteCount kib = 0;
    ByteCount* const value = name == "VmRSS:"     ? &memory.resident
                             : name == "VmHWM:"   ? &memory.peak
                             : name == "RssFile:" ? &memory.file
                                                  : nullptr;
    if (value != nullptr) {
      file >> kib;
      *value = kib << 10;
      ++found;
    }
    std::string rest;
    std::getline(file, rest);
  }
  if (found == 3) return memory;
  return Unavailable("/proc/self/status does not tell VmRSS, VmHWM and RssFile");
}

Status ResetPeakMemory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.close();
  if (file) return Status::Ok();
  return Unavailable("/proc/self/clear_refs cannot be written: the peak cannot begin anew");
}

}  // namespace dynatrain
