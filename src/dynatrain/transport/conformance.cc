#include "dynatrain/transport/conformance.h"

#include <algorithm>
#include <ostream>
#include <thread>
#include <utility>

#include "dynatrain/base/random.h"

namespace dynatrain::transport {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Pattern(int64_t bytes, uint64_t seed) {
  Bytes data(static_cast<size_t>(bytes));
  Random random(seed);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

uint64_t Seed(RankId from, RankId to, int64_t number) {
  return Hasher().Add(from).Add(to).Add(number).hash();
}

Status Same(const Bytes& got, const Bytes& want, const std::string& what) {
  if (got == want) return Status::Ok();
  return DataLoss("{}: the bytes received are not those sent", what);
}

Status Expect(bool condition, const std::string& what) {
  return condition ? Status::Ok() : Internal("not as promised: {}", what);
}

Status AllOk(const std::vector<Status>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (!results[rank].ok()) return results[rank].Within(fmt::format("rank {}", rank));
  }
  return Status::Ok();
}

Status SendAndWait(Transport& t, RankId to, Tag tag, ConstByteSpan data, Duration timeout) {
  DT_ASSIGN_OR_RETURN(const OpId op, t.Send(to, tag, data));
  return t.Wait(op, timeout);
}

Status ReceiveAndWait(Transport& t, RankId from, Tag tag, ByteSpan data, Duration timeout) {
  DT_ASSIGN_OR_RETURN(const OpId op, t.Receive(from, tag, data));
  return t.Wait(op, timeout);
}

// Messages of `sizes` between each pair both ways, all posted before the first wait; the tag of
// number k is tag(k).
Status Exchange(Transport& t, const std::vector<int64_t>& sizes,
                const std::function<Tag(int64_t)>& tag, Duration timeout) {
  struct Incoming {
    RankId from;
    int64_t number;
    Bytes data;
  };
  std::vector<Incoming> incoming;
  std::vector<Bytes> outgoing;
  std::vector<OpId> ops;
  const auto count = static_cast<int64_t>(sizes.size());
  incoming.reserve(t.ranks().size() * sizes.size());
  outgoing.reserve(t.ranks().size() * sizes.size());
  for (const RankId peer : t.ranks()) {
    if (peer == t.rank()) continue;
    for (int64_t k = 0; k < count; ++k) {
      Incoming& in = incoming.emplace_back(
          Incoming{peer, k, Bytes(static_cast<size_t>(sizes[static_cast<size_t>(k)]))});
      DT_ASSIGN_OR_RETURN(const OpId op, t.Receive(peer, tag(k), in.data));
      ops.push_back(op);
    }
  }
  for (const RankId peer : t.ranks()) {
    if (peer == t.rank()) continue;
    for (int64_t k = 0; k < count; ++k) {
      outgoing.push_back(Pattern(sizes[static_cast<size_t>(k)], Seed(t.rank(), peer, k)));
      DT_ASSIGN_OR_RETURN(const OpId op, t.Send(peer, tag(k), outgoing.back()));
      ops.push_back(op);
    }
  }
  for (const OpId op : ops) DT_RETURN_IF_ERROR(t.Wait(op, timeout));
  for (const Incoming& in : incoming) {
    const Bytes want =
        Pattern(static_cast<int64_t>(in.data.size()), Seed(in.from, t.rank(), in.number));
    DT_RETURN_IF_ERROR(Same(in.data, want, fmt::format("message {} from {}", in.number, in.from)));
  }
  return Status::Ok();
}

Status OrderOfEqualTags(const ConformanceFixture& f) {
  return AllOk(f.run(3, {}, [&](Transport& t) {
    return Exchange(t, std::vector<int64_t>(20, 64), [](int64_t) { return Tag{5}; }, f.timeout);
  }));
}

Status TagsAreKeptApart(const ConformanceFixture& f) {
  return AllOk(f.run(2, {}, [&](Transport& t) -> Status {
    const Tag last = kTagLimit - 1;
    const Bytes a = Pattern(100, 1);
    const Bytes b = Pattern(100, 2);
    Bytes got_a(100);
    Bytes got_b(100);
    if (t.rank() == 0) {
      DT_ASSIGN_OR_RETURN(const OpId first, t.Send(1, 0, a));
      DT_ASSIGN_OR_RETURN(const OpId second, t.Send(1, last, b));
      DT_RETURN_IF_ERROR(t.Wait(first, f.timeout));
      return t.Wait(second, f.timeout);
    }
    DT_ASSIGN_OR_RETURN(const OpId second, t.Receive(0, last, got_b));
    DT_ASSIGN_OR_RETURN(const OpId first, t.Receive(0, 0, got_a));
    DT_RETURN_IF_ERROR(t.Wait(second, f.timeout));
    DT_RETURN_IF_ERROR(t.Wait(first, f.timeout));
    DT_RETURN_IF_ERROR(Same(got_a, a, "tag 0"));
    return Same(got_b, b, "the largest tag");
  }));
}

Status ZeroBytes(const ConformanceFixture& f) {
  return AllOk(f.run(2, {}, [&](Transport& t) {
    return Exchange(t, {0, 8, 0, 16, 0}, [](int64_t k) { return static_cast<Tag>(k); }, f.timeout);
  }));
}

Status Sizes(const ConformanceFixture& f) {
  return AllOk(f.run(2, {}, [&](Transport& t) {
    std::vector<int64_t> sizes;
    for (const int64_t bytes : {4, 5, 1000, 4096, 65537, 1 << 20, (5 << 20) + 3, 8 << 20}) {
      if (bytes <= t.capabilities().max_message) sizes.push_back(bytes);
    }
    return Exchange(t, sizes, [](int64_t k) { return static_cast<Tag>(10 + k); }, f.timeout);
  }));
}

Status LongestMessage(const ConformanceFixture& f) {
  return AllOk(f.run(2, {}, [&](Transport& t) -> Status {
    const ByteCount most = t.capabilities().max_message;
    if (most > (64 << 20)) return Status::Ok();
    DT_RETURN_IF_ERROR(
        Exchange(t, {most, most - 1, most}, [](int64_t) { return Tag{1}; }, f.timeout));
    if (t.rank() != 0) return Status::Ok();
    const Bytes beyond(static_cast<size_t>(most) + 1);
    const auto op = t.Send(1, 2, beyond);
    const Status status = op.ok() ? t.Wait(*op, f.short_timeout) : op.status();
    return Expect(!status.ok(), "a message beyond max_message is refused");
  }));
}

Status ManySmall(const ConformanceFixture& f) {
  return AllOk(f.run(3, {}, [&](Transport& t) {
    return Exchange(
        t, std::vector<int64_t>(500, 4), [](int64_t k) { return static_cast<Tag>(k % 7); },
        f.timeout);
  }));
}

Status SubsetsOfPairs(const ConformanceFixture& f) {
  return AllOk(f.run(4, {}, [&](Transport& t) -> Status {
    Bytes token = Pattern(1024, 9);
    if (t.rank() == 3) DT_RETURN_IF_ERROR(SendAndWait(t, 1, 4, token, f.timeout));
    if (t.rank() == 1) {
      Bytes got(1024);
      DT_RETURN_IF_ERROR(ReceiveAndWait(t, 3, 4, got, f.timeout));
      DT_RETURN_IF_ERROR(Same(got, token, "a message of one pair while the others are silent"));
    }
    return Status::Ok();
  }));
}

Status LengthMismatch(const ConformanceFixture& f) {
  // Buffers of operations that may fail outlive the transports, here and below.
  const Bytes sent(96);
  Bytes received(64);
  const auto results = f.run(2, {}, [&](Transport& t) -> Status {
    if (t.rank() == 0) return SendAndWait(t, 1, 3, sent, f.timeout);
    return ReceiveAndWait(t, 0, 3, received, f.timeout);
  });
  return Expect(results[1].code() == StatusCode::kDataLoss,
                "a length mismatch is data loss at the receiver; it was: " + results[1].ToString());
}

Status DeadlineNamesThePair(const ConformanceFixture& f) {
  Bytes data(64);
  const auto results = f.run(3, {}, [&](Transport& t) -> Status {
    if (t.rank() != 1) return Status::Ok();
    const Status status = ReceiveAndWait(t, 2, 77, data, f.short_timeout);
    DT_RETURN_IF_ERROR(
        Expect(status.code() == StatusCode::kDeadlineExceeded,
               "a receive that nobody serves ends at its deadline; " + status.ToString()));
    for (const char* part : {"1", "2", "77"}) {
      DT_RETURN_IF_ERROR(Expect(status.message().find(part) != std::string::npos,
                                "the error names both ranks and the tag: " + status.message()));
    }
    return Status::Ok();
  });
  return AllOk(results);
}

Status WrongPeer(const ConformanceFixture& f) {
  return AllOk(f.run(2, {}, [&](Transport& t) -> Status {
    Bytes data(8);
    if (t.rank() == 0) {
      return Expect(t.Send(2, 1, data).status().code() == StatusCode::kInvalidArgument,
                    "a peer outside ranks() is refused");
    }
    return Expect(t.Receive(t.rank(), 1, data).status().code() == StatusCode::kInvalidArgument,
                  "a message to oneself is refused");
  }));
}

Status TagTooLarge(const ConformanceFixture& f) {
  return AllOk(f.run(2, {}, [&](Transport& t) -> Status {
    const Bytes data(8);
    return Expect(!t.Send(1 - t.rank(), kTagLimit, data).ok(), "a tag at the limit is refused");
  }));
}

Status AbortEndsAWait(const ConformanceFixture& f) {
  Bytes data(64);
  return AllOk(f.run(2, {}, [&](Transport& t) -> Status {
    if (t.rank() == 1) return Status::Ok();
    DT_ASSIGN_OR_RETURN(const OpId op, t.Receive(1, 1, data));
    std::thread aborter([&t] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      t.Abort();
    });
    const Status status = t.Wait(op, f.timeout);
    aborter.join();
    DT_RETURN_IF_ERROR(Expect(status.code() == StatusCode::kAborted,
                              "a wait that was aborted says so: " + status.ToString()));
    return Expect(!t.Send(1, 2, data).ok() || !t.Receive(1, 3, data).ok(),
                  "an aborted transport takes nothing more");
  }));
}

Status DeadAfterFailure(const ConformanceFixture& f) {
  Bytes data(64);
  return AllOk(f.run(2, {}, [&](Transport& t) -> Status {
    if (t.rank() == 1) return Status::Ok();
    DT_RETURN_IF_ERROR(
        Expect(!ReceiveAndWait(t, 1, 1, data, f.short_timeout).ok(), "nobody sends"));
    const auto op = t.Receive(1, 2, data);
    const Status status = op.ok() ? t.Wait(*op, f.timeout) : op.status();
    return Expect(status.code() == StatusCode::kUnavailable,
                  "after a failure every call fails with unavailable: " + status.ToString());
  }));
}

Status PeerDeath(const ConformanceFixture& f) {
  std::vector<Bytes> data(2, Bytes(1 << 16));
  return AllOk(f.run(3, {2}, [&](Transport& t) -> Status {
    if (t.rank() == 2) return Status::Ok();
    const Status status = ReceiveAndWait(t, 2, 1, data[static_cast<size_t>(t.rank())], f.timeout);
    DT_RETURN_IF_ERROR(Expect(!status.ok(), "a receive from a rank that died fails"));
    return Expect(status.message().find('2') != std::string::npos,
                  "the error names the dead rank: " + status.message());
  }));
}

// Rank 0 leaves with a receive outstanding; rank 1 sees it leave and is destroyed with receives
// outstanding as well. Nobody sent anything: the buffers are the callers' again, as they were. The
// same ranks then meet over a new transport.
Status DestroyedWithOutstanding(const ConformanceFixture& f) {
  const Bytes as_was = Pattern(1 << 16, 4);
  std::vector<Bytes> buffers(3, as_was);
  const auto results = f.run(2, {0}, [&](Transport& t) -> Status {
    if (t.rank() == 0) return t.Receive(1, 1, buffers[0]).status();
    const auto op = t.Receive(0, 2, buffers[1]);  // may see the peer gone already
    static_cast<void>(t.Receive(0, 3, buffers[2]).ok());
    const Status status = op.ok() ? t.Wait(*op, f.timeout) : op.status();
    DT_RETURN_IF_ERROR(Expect(!status.ok() && status.code() != StatusCode::kDeadlineExceeded,
                              "a receive from a rank that left fails: " + status.ToString()));
    return Expect(status.message().find("1 <- 0") != std::string::npos,
                  "the error names the pair: " + status.message());
  });
  DT_RETURN_IF_ERROR(AllOk(results));
  for (const Bytes& buffer : buffers)
    DT_RETURN_IF_ERROR(Same(buffer, as_was, "a receive that was never served"));
  return AllOk(f.run(2, {}, [&](Transport& t) {
    return Exchange(t, {5, 1000}, [](int64_t k) { return static_cast<Tag>(1 + k); }, f.timeout);
  }));
}

}  // namespace

std::vector<ConformanceCase> ConformanceCases() {
  return {{"OrderOfEqualTags", OrderOfEqualTags},
          {"TagsAreKeptApart", TagsAreKeptApart},
          {"ZeroBytes", ZeroBytes},
          {"Sizes", Sizes},
          {"LongestMessage", LongestMessage},
          {"ManySmall", ManySmall},
          {"SubsetsOfPairs", SubsetsOfPairs},
          {"LengthMismatch", LengthMismatch},
          {"DeadlineNamesThePair", DeadlineNamesThePair},
          {"WrongPeer", WrongPeer},
          {"TagTooLarge", TagTooLarge},
          {"AbortEndsAWait", AbortEndsAWait},
          {"DeadAfterFailure", DeadAfterFailure},
          {"PeerDeath", PeerDeath},
          {"DestroyedWithOutstanding", DestroyedWithOutstanding}};
}

}  // namespace dynatrain::transport
