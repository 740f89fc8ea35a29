// elastic::Store over c10d's TCPStore: a server that the launcher hosts, and connections to it.
#ifndef DYNATRAIN_BRIDGE_C10D_STORE_H_
#define DYNATRAIN_BRIDGE_C10D_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "dynatrain/base/clock.h"
#include "dynatrain/base/status.h"
#include "dynatrain/elastic/store.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dynatrain::bridge {

struct StoreAddress {
  std::string host;  // an IP address or a name
  uint16_t port = 0;
  // In front of every key of a connection: keeps a job apart in a store that others use as well.
  std::string prefix = {};
};

// The server. Its data live in this process and go with it, so the process must outlive all users:
// the launcher, never a rank. Unauthenticated: whoever reaches the address reads and writes.
class StoreServer {
 public:
  // Listens on `bind`, a numeric IPv4 or IPv6 address of this machine ("127.0.0.1", "0.0.0.0");
  // port 0 takes a free one. A port in use is kUnavailable and says so.
  static Result<std::unique_ptr<StoreServer>> Start(const StoreAddress& bind);

  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Where it listens, with the port taken.
  const StoreAddress& address() const { return address_; }

  // The number of keys held, ours and those of groups being built. Any thread.
  Result<int64_t> KeyCount();

 private:
  StoreServer(StoreAddress address, c10::intrusive_ptr<c10d::Store> store);

  StoreAddress address_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// Connects to a server, trying again until `timeout` has passed; a call on the store to which the
// server gives no answer in that time is kUnavailable. One connection and one thread per object
// (Clone makes another). Set returns when the server has the value. Values are stored with one byte
// in front, so that an empty value and no value differ; programs other than ours see that byte.
Result<std::unique_ptr<elastic::Store>> ConnectStore(const StoreAddress& address, Duration timeout);

// The same over any c10d store, such as a HashStore shared by ranks that are threads of one
// process.
std::unique_ptr<elastic::Store> WrapStore(c10::intrusive_ptr<c10d::Store> store,
                                          Duration answer_timeout);

// A plain c10d connection, for group building. Throws nothing; errors as ConnectStore.
Result<c10::intrusive_ptr<c10d::Store>> ConnectC10dStore(const StoreAddress& address,
                                                         Duration timeout);

}  // namespace dynatrain::bridge

#endif  // DYNATRAIN_BRIDGE_C10D_STORE_H_
