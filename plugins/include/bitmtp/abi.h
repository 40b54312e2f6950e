/* The C ABI of the operators: what an engine, in any language, calls.
 *
 * One argument record per operator, plain pointers and sizes, shared by the CPU library and the CUDA library. Shapes are
 * row-major; layouts and arithmetic are those of docs/numerics.md. Pointers are 4-byte aligned at least; packed weights and KV
 * planes 32-byte aligned (the bundle and the engines give 256). No operator reads an output before writing it, and none writes
 * outside the shapes given here. The mirror of these records in Python is bitmtp_edge/engines/abi.py.
 */
#ifndef BITMTP_ABI_H
#define BITMTP_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BITMTP_ABI_VERSION 3

enum bitmtp_weight_kind {
  BITMTP_FP16 = 0,    /* table fp16[rows, width]; no scales */
  BITMTP_INT8 = 1,    /* table int32[ceil(rows/8), Kp/4, 8] */
  BITMTP_TERNARY = 2, /* table int32[ceil(rows/8), Kp/16, 8] */
  BITMTP_DUAL = 3     /* table = base plane int32[ceil(rows/8), Kp/8, 8]; refinement the same shape or NULL (draft role) */
};

typedef struct bitmtp_weight {
  const void *table;
  const int32_t *refinement; /* BITMTP_DUAL in the verify role, else NULL */
  const uint16_t *scales;    /* fp16[ceil(rows/8), G, 8] */
  int32_t kind;
  int32_t rows;       /* N or the vocabulary */
  int32_t width;      /* K */
  int32_t group_size; /* 0 (one scale a row), 64 or 128 */
} bitmtp_weight;

enum bitmtp_op {
  BITMTP_TOKEN_EMBEDDING = 0,
  BITMTP_RMS_NORM_QUANT = 1,
  BITMTP_TERNARY_LINEAR = 2,
  BITMTP_DUAL_PLANE_LINEAR = 3,
  BITMTP_NESTED_KV_ATTENTION = 4,
  BITMTP_GATED_ACT_QUANT = 5,
  BITMTP_GREEDY_HEAD = 6
};

typedef struct bitmtp_token_embedding_args {
  const int32_t *token_ids;     /* [M]; -1-i takes mask_embeddings[i]; an id outside the table or the masks gives a zero row */
  const float *mask_embeddings; /* [P, K] or NULL */
  bitmtp_weight weight;
  float *hidden; /* [M, K] */
  int32_t M;
  int32_t P;
} bitmtp_token_embedding_args;

typedef struct bitmtp_rms_norm_quant_args {
  const float *hidden; /* [M, K] */
  const float *weight; /* [K] */
  int32_t *codes;      /* [M, Kp/4] */
  float *scale;        /* [M] */
  float epsilon;
  int32_t M;
  int32_t K;
} bitmtp_rms_norm_quant_args;

/* TernaryLinear and DualPlaneLinear */
typedef struct bitmtp_linear_args {
  const int32_t *codes;   /* [M, Kp/4] */
  const float *act_scale; /* [M] */
  bitmtp_weight weight;
  const float *residual; /* [M, N] or NULL; may be out itself */
  float *out;            /* [M, N] */
  int32_t M;
} bitmtp_linear_args;

enum bitmtp_kv_kind { BITMTP_KV_FP16 = 0, BITMTP_KV_NESTED = 1 };

typedef struct bitmtp_nested_kv_attention_args {
  const float *qkv;              /* [M, (H + 2*Hkv) * D]: q heads, k heads, v heads */
  const int32_t *positions;      /* [M] */
  const int32_t *mask;           /* [M, ceil(M/32)]: bit j of row i: slot i attends slot j */
  const int32_t *history_length; /* [1], at most capacity */
  const int32_t *kv4_length;     /* [1] or NULL (0) */
  const float *rotary;           /* [rotary_rows, D]: D/2 cosines, then D/2 sines */
  const void *history;           /* base plane int32[capacity, 2*Hkv*D/8] or fp16[capacity, 2*Hkv*D] */
  const int32_t *history_refinement; /* nested only */
  const uint16_t *history_scale;     /* nested only: fp16[capacity, 2*Hkv] */
  const float *qkv_bias;             /* [(H + 2*Hkv) * D] or NULL */
  const float *q_norm;               /* [D] or NULL */
  const float *k_norm;               /* [D] or NULL */
  const float *sub_norm;             /* [H*D] or NULL */
  int32_t *codes;                    /* [M, pad64(H*D)/4] */
  float *scale;                      /* [M] */
  void *new_rows;                    /* like history, M rows */
  int32_t *new_refinement;           /* nested only */
  uint16_t *new_scale;               /* nested only */
  void *workspace;                   /* bitmtp_cpu_workspace_bytes() of it, 64-byte aligned */
  float softmax_scale;
  float epsilon; /* of q_norm, k_norm and sub_norm */
  int32_t M;
  int32_t H;
  int32_t Hkv;
  int32_t D;
  int32_t capacity;
  int32_t rotary_rows;
  int32_t kv_kind;
} bitmtp_nested_kv_attention_args;

enum bitmtp_activation { BITMTP_SILU = 0, BITMTP_RELU2 = 1 };

typedef struct bitmtp_gated_act_quant_args {
  const float *gate_up;  /* [M, 2F]: gate, then up */
  const float *sub_norm; /* [F] or NULL */
  int32_t *codes;        /* [M, pad64(F)/4] */
  float *scale;          /* [M] */
  float epsilon;
  int32_t M;
  int32_t F;
  int32_t activation;
} bitmtp_gated_act_quant_args;

typedef struct bitmtp_greedy_head_args {
  const int32_t *codes;      /* [M, Kp/4] */
  const float *act_scale;    /* [M] */
  const int32_t *head_slots; /* [h]: rows of codes, each 0 .. M-1 */
  bitmtp_weight weight;      /* rows = vocabulary */
  int32_t *token_ids;        /* [h, top_k], best first */
  float *probability;        /* [h, top_k] */
  float *logits;             /* [h, vocabulary] or NULL */
  void *workspace;           /* bitmtp_cpu_workspace_bytes() of it, 64-byte aligned */
  int32_t M;
  int32_t h;
  int32_t top_k; /* 1 .. 16 */
} bitmtp_greedy_head_args;

/* ---- the CPU library ------------------------------------------------------------------------------------------------ */

/* A team of threads that runs plans. One caller at a time. */
typedef struct bitmtp_cpu_pool bitmtp_cpu_pool;
typedef struct bitmtp_cpu_plan bitmtp_cpu_plan;

typedef struct bitmtp_cpu_call {
  int32_t op;       /* enum bitmtp_op */
  const void *args; /* the operator's record; copied by plan_create */
} bitmtp_cpu_call;

/* One plane of a KV buffer: `capacity` history rows, then workspace rows. */
typedef struct bitmtp_kv_plane {
  void *base;
  int64_t row_bytes;
} bitmtp_kv_plane;

int32_t bitmtp_cpu_abi_version(void);

/* Instruction sets: names separated by commas, best first, all of which this processor runs. */
const char *bitmtp_cpu_isas(void);
/* Takes one of those names; NULL is the best. 0, or -1 for a name that is not among them. Applies to plans made afterwards. */
int32_t bitmtp_cpu_select_isa(const char *name);
const char *bitmtp_cpu_isa(void);

/* threads <= 0: one for every processor this process may run on. NULL if the threads cannot be made. */
bitmtp_cpu_pool *bitmtp_cpu_pool_create(int32_t threads);
int32_t bitmtp_cpu_pool_threads(const bitmtp_cpu_pool *pool);
void bitmtp_cpu_pool_destroy(bitmtp_cpu_pool *pool);

/* Bytes of the `workspace` of a call with these sizes (pointers are not looked at); 0 for operators without one. */
int64_t bitmtp_cpu_workspace_bytes(int32_t op, const void *args, int32_t threads);

/* NULL, with one line in error[0 .. error_bytes), where a record is not valid (sizes, kinds, missing pointers). */
bitmtp_cpu_plan *bitmtp_cpu_plan_create(const bitmtp_cpu_call *calls, int32_t count, char *error, int32_t error_bytes);
void bitmtp_cpu_plan_run(const bitmtp_cpu_plan *plan, bitmtp_cpu_pool *pool);
/* The same, and nanoseconds spent in each call written to ns[count]. */
void bitmtp_cpu_plan_profile(const bitmtp_cpu_plan *plan, bitmtp_cpu_pool *pool, int64_t *ns);
void bitmtp_cpu_plan_destroy(bitmtp_cpu_plan *plan);

/* promote: history row at + i of every plane takes workspace row rows[i]. Workspace starts at row `capacity`. */
void bitmtp_cpu_promote(const bitmtp_kv_plane *planes, int32_t count, int64_t capacity, const int32_t *rows, int32_t n, int64_t at);

/* ---- the CUDA library ----------------------------------------------------------------------------------------------- */

/* Each launcher enqueues its operator on `stream` (a cudaStream_t) of the current device and returns 0 or a cudaError_t;
 * cudaErrorInvalidValue (1) is also a record that the operator does not take. The record itself is read on the host, during the
 * call; every pointer in it is a device pointer, 16-byte aligned. No launcher allocates, synchronises or keeps state between
 * calls, so all of them can be captured in a graph. Rows have at most 65,536 columns, of norms and gates 32,768.
 *
 * On devices with programmatic dependent launch a kernel may start before the one ahead of it in the stream has ended. Until then
 * it reads only what no kernel of a step writes: weight tables, scales and norms' weights, and, in attention, history,
 * history_length, kv4_length, mask, positions and the rotary table. bitmtp_cuda_token_embedding starts when all before it has
 * ended; so whatever writes those in the stream is followed by it before the next attention, or by a synchronisation. */
int32_t bitmtp_cuda_abi_version(void);

/* Programmatic dependent launch for the calls that follow, in this process: 1 (the default; without effect below compute
 * capability 9.0) or 0. Returns the former value. */
int32_t bitmtp_cuda_set_programmatic_launch(int32_t on);

int32_t bitmtp_cuda_token_embedding(const bitmtp_token_embedding_args *args, void *stream);
int32_t bitmtp_cuda_rms_norm_quant(const bitmtp_rms_norm_quant_args *args, void *stream);
int32_t bitmtp_cuda_ternary_linear(const bitmtp_linear_args *args, void *stream);
int32_t bitmtp_cuda_dual_plane_linear(const bitmtp_linear_args *args, void *stream);
int32_t bitmtp_cuda_nested_kv_attention(const bitmtp_nested_kv_attention_args *args, void *stream);
int32_t bitmtp_cuda_gated_act_quant(const bitmtp_gated_act_quant_args *args, void *stream);
int32_t bitmtp_cuda_greedy_head(const bitmtp_greedy_head_args *args, void *stream);

/* Bytes of the `workspace` of a call with these sizes; pointers are not looked at. Uninitialised memory will do, and the operators
 * of one stream may share it. */
int64_t bitmtp_cuda_nested_kv_attention_workspace_bytes(const bitmtp_nested_kv_attention_args *args);
int64_t bitmtp_cuda_greedy_head_workspace_bytes(const bitmtp_greedy_head_args *args);

/* As bitmtp_cpu_promote; planes[] and rows[] are read on the host during the call, the planes' bases are on the device. */
int32_t bitmtp_cuda_promote(const bitmtp_kv_plane *planes, int32_t count, int64_t capacity, const int32_t *rows, int32_t n,
                            int64_t at, void *stream);

enum { BITMTP_STAGE_TOKENS = 64, BITMTP_STAGE_OUTPUTS = 16 };

/* The causal window of `prefix` and the drafts after it, which are the first tokens of outputs that the host need not have read. */
typedef struct bitmtp_stage_args {
  const int32_t *prefix;         /* [prefix_rows], on the host */
  const int32_t *const *outputs; /* [output_count], on the host: steps' token_ids on the device, each int32[rows, top_k] */
  const int32_t *output_rows;    /* [output_count], on the host: the leading rows of each that are drafts */
  int32_t *token_ids;            /* [M]: prefix, drafts, and token 0 in spare slots */
  int32_t *positions;            /* [M]: history, history + 1, ..; `history` in spare slots */
  int32_t *mask;                 /* [M, ceil(M/32)]: causal, but for two_way; a spare slot sees itself alone */
  int32_t *head_slots;           /* [h]: the last `heads` rows, then the last one again */
  int32_t *history_length;       /* [1] */
  int32_t *kv4_length;           /* [1] */
  int32_t history;               /* rows of history */
  int32_t kv4_history;           /* of them, those that a draft step reads at KV4: what kv4_length gets */
  int32_t prefix_rows;           /* 0 .. BITMTP_STAGE_TOKENS */
  int32_t output_count;          /* 0 .. BITMTP_STAGE_OUTPUTS */
  int32_t top_k;
  int32_t M;
  int32_t h;
  int32_t heads;   /* 1 .. min(h, rows) */
  int32_t two_way; /* 0 .. rows: the last rows, which also see each other */
} bitmtp_stage_args;

int32_t bitmtp_cuda_stage(const bitmtp_stage_args *args, void *stream);

/* Copies `bytes`, a multiple of 4, between page-locked memory of the host and the device's, both at multiples of 4. A few kilobytes go by
 * a kernel, which a step's other kernels wait for less than for a copy engine. */
int32_t bitmtp_cuda_send(const void *host, void *device, int64_t bytes, void *stream);
int32_t bitmtp_cuda_fetch(const void *device, void *host, int64_t bytes, void *stream);

/* ---- CUDA graphs ---------------------------------------------------------------------------------------------------------- */

/* What is enqueued on `stream` (a cudaStream_t, not the default one) between begin and end, by this thread, does not run: it becomes a
 * graph. Everything else that this process does with the GPU meanwhile goes on. Each returns 0 or a cudaError_t. */
typedef struct bitmtp_graph bitmtp_graph;

int32_t bitmtp_graph_begin(void *stream);
/* Also ends a capture that failed; *graph is NULL then. A NULL `graph` drops what was captured. */
int32_t bitmtp_graph_end(void *stream, bitmtp_graph **graph);
/* Enqueues the graph. Any number of times; its memory must be there. */
int32_t bitmtp_graph_launch(const bitmtp_graph *graph, void *stream);
/* Nodes of the graph: kernels, copies and fills. */
int64_t bitmtp_graph_nodes(const bitmtp_graph *graph);
/* Not while it runs. NULL does nothing. */
void bitmtp_graph_destroy(bitmtp_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
