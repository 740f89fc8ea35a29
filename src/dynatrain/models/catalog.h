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

// clang-format off
// Every parameter of the model, each with `kinds`, registered in this order: embedding, each layer, head.
// Shapes are logical, so that every tensor-parallel part is a box:
//   embedding.weight              [vocab, hidden]                             cut on vocab
//   embedding.position.weight     [max_positions, hidden]                     not cut          kGpt
//   layers.N.input_norm.weight    [hidden]                                    not cut
//   layers.N.attn.qkv.weight      [kv_heads, q_per_kv + 2, head_dim, hidden]  cut on kv_heads  q.. k v of a group
//   layers.N.attn.out.weight      [hidden, kv_heads, q_per_kv, head_dim]      cut on kv_heads
//   layers.N.post_norm.weight     [hidden]                                    not cut
//   layers.N.mlp.gate_up.weight   [2, ffn, hidden]                            cut on ffn       kLlama: gate, up
//   layers.N.mlp.up.weight        [ffn, hidden]                               cut on ffn       kGpt
//   layers.N.mlp.down.weight      [hidden, ffn]                               cut on ffn
//   final_norm.weight             [hidden]                                    not cut
//   head.weight                   [vocab, hidden]                             cut on vocab     unless tied
// clang-format on
// and right after each weight its ".bias" where it exists: of qkv [kv_heads, q_per_kv + 2,
// head_dim], gate_up [2, ffn] and up [ffn] cut as the weight, of out, down and the norms [hidden]
// not cut. Cuts are balanced. A tied head is embedding.weight with a second home. Weight decay:
// matrices yes; norms and biases no.
Result<std::shared_ptr<const vps::StateCatalog>> MakeCatalog(const ModelConfig& config,
                                                             std::vector<vps::KindSpec> kinds);

// Parameters of the model, a tied one once.
int64_t ParameterCount(const vps::StateCatalog& catalog);

// Refuses a layout in which some stage has no layer or some tensor-parallel position no kv head,
// ffn column or vocabulary row; names the numbers and what would fit. Uneven parts are fine.
Status CheckLayout(const ModelConfig& config, const vps::Layout& layout);

}  // namespace dynatrain::models

#endif  // DYNATRAIN_MODELS_CATALOG_H_
