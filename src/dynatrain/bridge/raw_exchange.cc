#include "dynatrain/bridge/raw_exchange.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "dynatrain/bridge/deadline.h"
#include "dynatrain/bridge/fence.h"

namespace dynatrain::bridge {
namespace {

constexpr int kTag = 1;

template <class Post>
void ForEachChunk(std::byte* data, size_t bytes, size_t chunk, const Post& post) {
  for (size_t begin = 0; begin < bytes; begin += chunk) {
    std::vector<at::Tensor> view = {at::from_blob(
        data + begin, {static_cast<int64_t>(std::min(chunk, bytes - begin))}, at::kByte)};
    post(view);
  }
}

}  // namespace

Status ExchangeRaw(c10d::Backend& group, const std::map<int, ConstByteSpan>& out,
                   const std::map<int, ByteSpan>& in, ByteCount chunk_bytes, Duration timeout) {
  const Deadline deadline(timeout);
  const auto chunk = static_cast<size_t>(std::max<ByteCount>(chunk_bytes, 1));
  return Fence("raw exchange", [&] {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (const auto& [peer, span] : in) {
      ForEachChunk(span.data(), span.size(), chunk, [&](std::vector<at::Tensor>& view) {
        works.push_back(group.recv(view, peer, kTag));
      });
    }
    for (const auto& [peer, span] : out) {
      // Gloo does not write to what it sends.
      ForEachChunk(
          const_cast<std::byte*>(span.data()), span.size(), chunk,
          [&](std::vector<at::Tensor>& view) { works.push_back(group.send(view, peer, kTag)); });
    }
    for (const auto& work : works) work->wait(ToMillis(deadline.left()));
  });
}

}  // namespace dynatrain::bridge
