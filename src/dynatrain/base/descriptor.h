// Descriptor: a file descriptor that closes itself.
#ifndef DYNATRAIN_BASE_DESCRIPTOR_H_
#define DYNATRAIN_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace dynatrain {

// Owns `fd`; one below 0, as a failed open returns it, is none.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  // The caller closes it from now on.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace dynatrain

#endif  // DYNATRAIN_BASE_DESCRIPTOR_H_
