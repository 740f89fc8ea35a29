// Two processes, all operations that the trainer and the switch use, over a store in a third.
#include "dynatrain/bridge/gloo_shim.h"

#include <chrono>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dynatrain/bridge/c10d_store.h"
#include "dynatrain/bridge/group_store.h"
#include "dynatrain/bridge/process_harness.h"

namespace dynatrain::bridge {
namespace {

using std::chrono::seconds;
using Tensors = std::vector<at::Tensor>;

constexpr seconds kTimeout{20};

at::Tensor Full(int64_t n, int64_t value) { return at::full({n}, value, at::kFloat); }

void Expect(const at::Tensor& got, const at::Tensor& want, const char* what) {
  TORCH_CHECK(at::equal(got, want), what, ": got ", got, ", want ", want);
}

void Collectives(c10d::Backend& group, int rank, int size) {
  const int64_t sum = size * (size - 1) / 2;
  Tensors reduced = {Full(5, rank)};
  group.allreduce(reduced)->wait();
  Expect(reduced[0], Full(5, sum), "allreduce sum");

  Tensors largest = {at::full({2}, rank, at::kLong)};
  c10d::AllreduceOptions max;
  max.reduceOp = c10d::ReduceOp::MAX;
  group.allreduce(largest, max)->wait();
  Expect(largest[0], at::full({2}, size - 1, at::kLong), "allreduce max of int64");

  Tensors half = {Full(3, rank).to(at::kBFloat16)};
  group.allreduce(half)->wait();
  Expect(half[0], Full(3, sum).to(at::kBFloat16), "allreduce of bfloat16");

  Tensors sent = {Full(3, rank)};
  c10d::BroadcastOptions from_one;
  from_one.rootRank = 1;
  group.broadcast(sent, from_one)->wait();
  Expect(sent[0], Full(3, 1), "broadcast");

  at::Tensor all = at::empty({2 * size}, at::kFloat);
  at::Tensor mine = Full(2, rank);
  group._allgather_base(all, mine)->wait();
  Expect(all, at::arange(size, at::kFloat).repeat_interleave(2), "allgather into one tensor");

  at::Tensor part = at::empty({2}, at::kFloat);
  at::Tensor whole = at::arange(2 * size, at::kFloat) + rank;
  group._reduce_scatter_base(part, whole)->wait();
  Expect(part, at::arange(2 * rank, 2 * rank + 2, at::kFloat) * size + sum, "reduce_scatter");

  group.barrier()->wait();
}

// The second tag is sent first.
void Messages(c10d::Backend& group, int rank) {
  const int peer = 1 - rank;
  Tensors in7 = {at::empty({1 << 20}, at::kFloat)};
  Tensors in8 = {at::empty({5}, at::kFloat)};
  Tensors out7 = {Full(1 << 20, 70 + rank)};
  Tensors out8 = {Full(5, 80 + rank)};
  auto works = {group.recv(in7, peer, 7), group.recv(in8, peer, 8), group.send(out8, peer, 8),
                group.send(out7, peer, 7)};
  for (const auto& work : works) work->wait(kTimeout);
  Expect(in7[0], Full(1 << 20, 70 + peer), "receive tag 7");
  Expect(in8[0], Full(5, 80 + peer), "receive tag 8");
}

int Smoke(const ChildArgs& child) {
  const StoreAddress address = {child.values[0], static_cast<uint16_t>(std::stoi(child.values[1]))};
  auto store = ConnectC10dStore(address, kTimeout).value();
  const GlooDevice device = child.values[2] == "lo" ? MakeGlooDeviceForInterface("lo")
                                                    : MakeGlooDeviceForAddress("127.0.0.1");
  for (int generation = 0; generation < 2; ++generation) {
    auto group = MakeGlooBackend(
        c10::make_intrusive<GroupStore>("smoke/" + std::to_string(generation), store, kTimeout),
        child.rank, child.ranks, kTimeout, device);
    Collectives(*group, child.rank, child.ranks);
    if (child.ranks == 2) Messages(*group, child.rank);
    group->barrier()->wait();
  }
  return 0;
}

testing::AssertionResult RunSmoke(int ranks, const std::string& where) {
  auto server = StoreServer::Start({"127.0.0.1", 0});
  if (!server.ok()) return testing::AssertionFailure() << server.status().ToString();
  const StoreAddress& address = (*server)->address();
  return RunProcesses({.body = "Smoke",
                       .ranks = ranks,
                       .values = {address.host, std::to_string(address.port), where}});
}

TEST(GlooShim, TwoProcessesRunEveryOperation) { EXPECT_TRUE(RunSmoke(2, "lo")); }

TEST(GlooShim, ThreeProcessesRunEveryCollective) { EXPECT_TRUE(RunSmoke(3, "127.0.0.1")); }

}  // namespace
}  // namespace dynatrain::bridge

int main(int argc, char** argv) {
  return dynatrain::bridge::HarnessMain(argc, argv, {{"Smoke", dynatrain::bridge::Smoke}});
}
