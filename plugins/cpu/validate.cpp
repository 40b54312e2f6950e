// What plan_create refuses. Sizes and pointers are checked here once, so that no kernel checks them at each step.
#include "validate.h"

#include "bitmtp/abi.h"
#include "weight.h"

namespace bitmtp {

namespace {

// 2^17 columns: up to here the int32 dot of a whole row cannot overflow, and neither can the kernels' table of activation sums.
constexpr int32_t kMostColumns = 131072;
// Keeps every count of elements of an activation within int32 products that the kernels form in int64.
constexpr int32_t kMostRows = 1 << 20;
constexpr int32_t kMostVocabulary = 1 << 24;

std::string number(int64_t value) { return std::to_string(value); }

std::string outside(const char *field, int64_t value, int64_t low, int64_t high) {
  return std::string(field) + " is " + number(value) + ", expected " + number(low) + " .. " + number(high);
}

bool aligned(const void *pointer, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Collects the first fault.
class Checker {
 public:
  const std::string &fault() const { return fault_; }

  void range(const char *field, int64_t value, int64_t low, int64_t high) {
    if (fault_.empty() && (value < low || value > high)) fault_ = outside(field, value, low, high);
  }
  void pointer(const char *field, const void *value, uintptr_t alignment = 4) {
    if (!fault_.empty()) return;
    if (value == nullptr)
      fault_ = std::string(field) + " is NULL";
    else
      optional(field, value, alignment);
  }
  void optional(const char *field, const void *value, uintptr_t alignment = 4) {
    if (fault_.empty() && !aligned(value, alignment))
      fault_ = std::string(field) + " is not aligned to " + number(static_cast<int64_t>(alignment)) + " bytes";
  }
  void require(bool condition, const std::string &text) {
    if (fault_.empty() && !condition) fault_ = text;
  }

  // `kinds` has bit k set where weight kind k may stand.
  void weight(const bitmtp_weight &w, unsigned kinds) {
    range("weight.rows", w.rows, 1, kMostVocabulary);
    range("weight.width", w.width, 1, kMostColumns);
    require(w.kind >= BITMTP_FP16 && w.kind <= BITMTP_DUAL && (kinds >> w.kind & 1),
            "weight.kind " + number(w.kind) + " does not go with this operator");
    if (w.kind == BITMTP_FP16) {
      pointer("weight.table", w.table);
      return;
    }
    require(w.group_size == 0 || w.group_size == 64 || w.group_size == 128,
            "weight.group_size is " + number(w.group_size) + ", expected 0, 64 or 128");
    pointer("weight.table", w.table, 32);
    pointer("weight.scales", w.scales);
    if (w.kind == BITMTP_DUAL)
      optional("weight.refinement", w.refinement, 32);
    else
      require(w.refinement == nullptr, "weight.refinement is set, but weight.kind is not dual-plane");
  }

 private:
  std::string fault_;
};

constexpr unsigned kAnyKind = 1u << BITMTP_FP16 | 1u << BITMTP_INT8 | 1u << BITMTP_TERNARY | 1u << BITMTP_DUAL;

void check(Checker &c, const bitmtp_token_embedding_args &a) {
  c.range("M", a.M, 1, kMostRows);
  c.range("P", a.P, 0, kMostRows);
  c.weight(a.weight, kAnyKind);
  c.pointer("token_ids", a.token_ids);
  if (a.P > 0) c.pointer("mask_embeddings", a.mask_embeddings);
  c.pointer("hidden", a.hidden);
}

void check(Checker &c, const bitmtp_rms_norm_quant_args &a) {
  c.range("M", a.M, 1, kMostRows);
  c.range("K", a.K, 1, kMostColumns);
  c.pointer("hidden", a.hidden);
  c.pointer("weight", a.weight);
  c.pointer("codes", a.codes);
  c.pointer("scale", a.scale);
}

void check(Checker &c, const bitmtp_linear_args &a, unsigned kinds) {
  c.range("M", a.M, 1, kMostRows);
  c.weight(a.weight, kinds);
  c.pointer("codes", a.codes);
  c.pointer("act_scale", a.act_scale);
  c.optional("residual", a.residual);
  c.pointer("out", a.out);
}

void check(Checker &c, const bitmtp_nested_kv_attention_args &a) {
  c.range("M", a.M, 1, kMostRows);
  c.range("H", a.H, 1, 1024);
  c.range("Hkv", a.Hkv, 1, 1024);
  c.range("D", a.D, 8, 1024);
  c.range("capacity", a.capacity, 0, 1 << 28);
  c.range("rotary_rows", a.rotary_rows, 1, 1 << 28);
  c.range("kv_kind", a.kv_kind, BITMTP_KV_FP16, BITMTP_KV_NESTED);
  c.require(a.D % 8 == 0, "D is " + number(a.D) + ", expected a multiple of 8");
  c.require(a.Hkv < 1 || a.H % a.Hkv == 0, "H is " + number(a.H) + ", expected a multiple of Hkv, " + number(a.Hkv));
  c.range("H * D", static_cast<int64_t>(a.H) * a.D, 8, kMostColumns);
  c.pointer("qkv", a.qkv);
  c.pointer("positions", a.positions);
  c.pointer("mask", a.mask);
  c.pointer("history_length", a.history_length);
  c.optional("kv4_length", a.kv4_length);
  c.pointer("rotary", a.rotary);
  c.optional("qkv_bias", a.qkv_bias);
  c.optional("q_norm", a.q_norm);
  c.optional("k_norm", a.k_norm);
  c.optional("sub_norm", a.sub_norm);
  c.pointer("codes", a.codes);
  c.pointer("scale", a.scale);
  c.pointer("new_rows", a.new_rows);
  c.pointer("workspace", a.workspace, 64);
  if (a.capacity > 0) c.pointer("history", a.history);
  if (a.kv_kind == BITMTP_KV_NESTED) {
    if (a.capacity > 0) {
      c.pointer("history_refinement", a.history_refinement);
      c.pointer("history_scale", a.history_scale);
    }
    c.pointer("new_refinement", a.new_refinement);
    c.pointer("new_scale", a.new_scale, 2);
  }
}

void check(Checker &c, const bitmtp_gated_act_quant_args &a) {
  c.range("M", a.M, 1, kMostRows);
  c.range("F", a.F, 1, kMostColumns);
  c.range("activation", a.activation, BITMTP_SILU, BITMTP_RELU2);
  c.pointer("gate_up", a.gate_up);
  c.optional("sub_norm", a.sub_norm);
  c.pointer("codes", a.codes);
  c.pointer("scale", a.scale);
}

void check(Checker &c, const bitmtp_greedy_head_args &a) {
  c.range("M", a.M, 1, kMostRows);
  c.range("h", a.h, 1, kMostRows);
  c.weight(a.weight, kAnyKind);
  c.range("top_k", a.top_k, 1, a.weight.rows < 16 ? a.weight.rows : 16);
  c.pointer("codes", a.codes);
  c.pointer("act_scale", a.act_scale);
  c.pointer("head_slots", a.head_slots);
  c.pointer("token_ids", a.token_ids);
  c.pointer("probability", a.probability);
  c.optional("logits", a.logits);
  c.pointer("workspace", a.workspace, 64);
}

template <class Args>
const Args &as(const void *args) {
  return *static_cast<const Args *>(args);
}

}  // namespace

size_t record_bytes(int32_t op) {
  switch (op) {
    case BITMTP_TOKEN_EMBEDDING: return sizeof(bitmtp_token_embedding_args);
    case BITMTP_RMS_NORM_QUANT: return sizeof(bitmtp_rms_norm_quant_args);
    case BITMTP_TERNARY_LINEAR:
    case BITMTP_DUAL_PLANE_LINEAR: return sizeof(bitmtp_linear_args);
    case BITMTP_NESTED_KV_ATTENTION: return sizeof(bitmtp_nested_kv_attention_args);
    case BITMTP_GATED_ACT_QUANT: return sizeof(bitmtp_gated_act_quant_args);
    case BITMTP_GREEDY_HEAD: return sizeof(bitmtp_greedy_head_args);
    default: return 0;
  }
}

std::string fault(int32_t op, const void *args) {
  if (record_bytes(op) == 0) return "unknown operator " + number(op);
  if (args == nullptr) return "args is NULL";
  Checker c;
  switch (op) {
    case BITMTP_TOKEN_EMBEDDING: check(c, as<bitmtp_token_embedding_args>(args)); break;
    case BITMTP_RMS_NORM_QUANT: check(c, as<bitmtp_rms_norm_quant_args>(args)); break;
    case BITMTP_TERNARY_LINEAR: check(c, as<bitmtp_linear_args>(args), 1u << BITMTP_TERNARY); break;
    case BITMTP_DUAL_PLANE_LINEAR: check(c, as<bitmtp_linear_args>(args), 1u << BITMTP_DUAL); break;
    case BITMTP_NESTED_KV_ATTENTION: check(c, as<bitmtp_nested_kv_attention_args>(args)); break;
    case BITMTP_GATED_ACT_QUANT: check(c, as<bitmtp_gated_act_quant_args>(args)); break;
    case BITMTP_GREEDY_HEAD: check(c, as<bitmtp_greedy_head_args>(args)); break;
  }
  return c.fault();
}

}  // namespace bitmtp
