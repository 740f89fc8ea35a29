// The state of a model as a catalog of logical tensors, and whether a layout fits the model.
#ifndef DYNATRAIN_MODELS_CATALOG_H_
#define DYNATRAIN_MODELS_CATALOG_H_

#include <memory>
#include <vector>

#include "dynatrain/base/status.h"
#include "dynatrain/models/config.h"
#include "dynatrain/vps/catalog.h"
#include "dynatrain/vps/layout.h"

namespace dynatrain::models {

// How a host stores what can be stored in several ways.
struct CatalogOptions {
  // More tensor-parallel positions than key-value heads: some get none (kBalanced); heads are
  // replicated and their query heads divided (kGroups); rows are cut through heads, as
  // Megatron-Core does (kRows).
  enum class KvHeads : uint8_t { kBalanced, kGroups, kRows };
  KvHeads kv_heads = KvHeads::kBalanced;
  int64_t vocab_divisor = 0;      // pad each part of the vocabulary to a multiple; Megatron: 128
  bool expert_stacks = true;      // [expert, ..] as one tensor, or one tensor per expert
  bool concatenated_qkv = false;  // local order Q | K | V instead of q.. k v per group
  // Gate and up in turns, in blocks of this many columns (32 in Megatron-Core's fused kernels):
  // [ffn / block, 2, block, hidden], cut between blocks. 0: [gate; up]. Must divide ffn.
  int64_t glu_block = 0;
};

// clang-format off
// Every parameter of the model, each with `kinds`, registered in this order: embedding, each layer, head.
// Shapes are logical, so that every tensor-parallel part is a box:
//   embedding.weight              [vocab, hidden]                             cut on vocab
//   embedding.position.weight     [max_positions, hidden]                     not cut          kGpt
//   layers.N.input_norm.weight    [hidden]                                    not cut
//   layers.N.attn.qkv.weight      [kv_heads, q_per_kv + 2, head_dim, hidden]  cut on kv_heads  q.. k v of a group
//   layers.N.attn.q_norm.weight, k_norm.weight  [head_dim]                    not cut          qk_norm
//   layers.N.attn.out.weight      [hidden, kv_heads, q_per_kv, head_dim]      cut on kv_heads
//   layers.N.post_norm.weight     [hidden]                                    not cut
//   layers.N.mlp.gate_up.weight   [2, ffn, hidden]                            cut on ffn       kLlama: gate, up
//   layers.N.mlp.up.weight        [ffn, hidden]                               cut on ffn       kGpt
//   layers.N.mlp.down.weight      [hidden, ffn]                               cut on ffn
//   final_norm.weight             [hidden]                                    not cut
//   head.weight                   [vocab, hidden]                             cut on vocab     unless tied
// in a layer with experts, for its mlp.gate_up and mlp.down (or experts.E.gate_up, .down one by one):
//   layers.N.mlp.router.weight           [experts, hidden]                    not cut
//   layers.N.mlp.router.score_bias       [experts], fp32, frozen              not cut
//   layers.N.mlp.experts.gate_up.weight  [experts, 2, moe_ffn, hidden]        cut on ffn and by expert
//   layers.N.mlp.experts.down.weight     [experts, hidden, moe_ffn]           cut on ffn and by expert
//   layers.N.mlp.shared.gate_up.weight, .down.weight                          as an MLP of shared_ffn
// with latent attention, for its attn.qkv and attn.out:
//   layers.N.attn.q_down.weight   [q_lora_rank, hidden]                       not cut          and q_down_norm
//   layers.N.attn.q_up.weight     [heads, nope + rope, q_lora_rank]           cut on heads     or q [.., hidden]
//   layers.N.attn.kv_down.weight  [kv_lora_rank + rope, hidden]               not cut          and kv_down_norm
//   layers.N.attn.kv_up.weight    [heads, nope + v, kv_lora_rank]             cut on heads
//   layers.N.attn.out.weight      [hidden, heads, v]                          cut on heads
// clang-format on
// and right after each weight its ".bias" where it exists: of qkv [kv_heads, q_per_kv + 2,
// head_dim], gate_up [2, ffn] and up [ffn] cut as the weight, of out, down and the norms [hidden]
// not cut. Cuts are balanced. A tied head is embedding.weight with a second home. Weight decay:
// matrices yes; norms and biases no.
Result<std::shared_ptr<const vps::StateCatalog>> MakeCatalog(const ModelConfig& config,
                                                             std::vector<vps::KindSpec> kinds,
                                                             const CatalogOptions& options = {});

// Parameters of the model, a tied one once.
int64_t ParameterCount(const vps::StateCatalog& catalog);

// Refuses a layout in which some stage has no layer or some position no head, ffn column, expert or
// vocabulary row; names the numbers and what would fit. Uneven parts are fine.
Status CheckGeometry(const ModelConfig& config, const vps::Layout& layout,
                     const CatalogOptions& options = {});

// The same, and refuses models and degrees that can be planned but not trained here.
Status CheckLayout(const ModelConfig& config, const vps::Layout& layout);

}  // namespace dynatrain::models

#endif  // DYNATRAIN_MODELS_CATALOG_H_
