// Launches that depend on each other: one by one without programmatic launch against captured graphs with it, bit for bit; stage,
// promote, and the exchange with the host.
#include <algorithm>

#include "stack.cuh"

namespace sweep {

namespace {

void step_cases(Report &report) {
  const StackShape shapes[] = {{"one scale a row", 576, 1152, 1536, 6, 0, BITMTP_RELU2, 1000, BITMTP_INT8},
                               {"groups of 128", 2048, 4096, 6144, 6, 128, BITMTP_SILU, 20000, BITMTP_TERNARY},
                               {"many blocks", 2560, 5120, 6912, 4, 0, BITMTP_RELU2, 30000, BITMTP_INT8}};
  for (const StackShape &shape : shapes) {
    if (report.quick() && &shape != shapes) break;
    const Stack stack(shape, 17);
    std::vector<uint32_t> first_row;
    for (int32_t M : {1, 5, 9, 15, 17}) {
      stack.poison();
      const int32_t before = bitmtp_cuda_set_programmatic_launch(0);
      stack.enqueue(M, M, nullptr);
      finish();
      bitmtp_cuda_set_programmatic_launch(before);
      const std::vector<uint32_t> want = stack.result(M);
      const std::string name = std::string(shape.name) + " M=" + std::to_string(M);
      const std::vector<uint32_t> row(want.begin(), want.begin() + shape.hidden);
      if (first_row.empty()) first_row = row;
      report.count("chain", row == first_row, name + ": row 0 has other bits than at M=1");
      const Graph graph(true, [&](cudaStream_t stream) { stack.enqueue(M, M, stream); });
      stack.poison();
      finish();
      const int32_t replays = report.quick() ? 5 : 200;
      for (int32_t i = 0; i < replays; ++i) {
        graph.replay();
        if (i % 20 == 3) {  // back to back in between
          graph.wait();
          const std::vector<uint32_t> got = stack.result(M);
          const int64_t at = first_difference(got.data(), want.data(), want.size());
          report.count("chain", at < 0, name + ": replay " + std::to_string(i) + " differs at word " + std::to_string(at));
          stack.poison();
          finish();
        }
      }
      graph.wait();
    }
  }
}

void stage_cases(Report &report) {
  Random random = report.random("stage");
  for (int32_t i = 0; i < 40; ++i) {
    const int32_t prefix_rows = random.integer(1, 20), count = random.integer(0, 4), top_k = random.integer(1, 3);
    std::vector<int32_t> prefix(prefix_rows), want_ids;
    for (int32_t &t : prefix) t = random.integer(0, 50000);
    want_ids = prefix;
    std::vector<DeviceArray<int32_t>> outputs;
    std::vector<const int32_t *> pointers;
    std::vector<int32_t> rows;
    for (int32_t o = 0; o < count; ++o) {
      rows.push_back(random.integer(0, 8));
      std::vector<int32_t> ids(static_cast<size_t>(rows.back() + 1) * top_k);
      for (int32_t &t : ids) t = random.integer(0, 50000);
      for (int32_t r = 0; r < rows.back(); ++r) want_ids.push_back(ids[r * top_k]);
      outputs.emplace_back(ids);
      pointers.push_back(outputs.back().data());
    }
    const int32_t used = static_cast<int32_t>(want_ids.size()), M = used + random.integer(0, 1) * random.integer(0, 40);
    const int32_t heads = random.integer(1, used), h = heads + random.integer(0, 3), history = random.integer(0, 30000), words = (M + 31) / 32;
    const int32_t kv4_history = random.integer(0, history), two_way = random.integer(0, 1) * random.integer(0, used);
    std::vector<int32_t> want_positions(M, history), want_mask(static_cast<size_t>(M) * words), want_slots(h);
    want_ids.resize(M, 0);
    for (int32_t m = 0; m < M; ++m) {
      if (m < used) want_positions[m] = history + m;
      for (int32_t j = 0; j < M; ++j)
        if (m < used ? j <= m || (j < used && m >= used - two_way) : j == m) want_mask[m * words + j / 32] = static_cast<int32_t>(static_cast<uint32_t>(want_mask[m * words + j / 32]) | 1u << (j % 32));
    }
    for (int32_t s = 0; s < h; ++s) want_slots[s] = used - heads + std::min(s, heads - 1);
    const DeviceOutput<int32_t> ids(M), positions(M), mask(want_mask.size()), slots(h), length(1), kv4(1);
    const bitmtp_stage_args args{prefix.data(), pointers.data(), rows.data(), ids.data(), positions.data(), mask.data(), slots.data(), length.data(), kv4.data(),
                                 history, kv4_history, prefix_rows, count, top_k, M, h, heads, two_way};
    require(bitmtp_cuda_stage(&args, nullptr), "stage");
    finish();
    bool intact[6] = {};
    const bool same = ids.read(intact[0]) == want_ids && positions.read(intact[1]) == want_positions && mask.read(intact[2]) == want_mask &&
                      slots.read(intact[3]) == want_slots && length.read(intact[4])[0] == history && kv4.read(intact[5])[0] == kv4_history;
    report.count("stage", same && std::all_of(intact, intact + 6, [](bool whole) { return whole; }),
                 "rows=" + std::to_string(used) + " M=" + std::to_string(M) + " outputs=" + std::to_string(count));
  }
}

void promote_cases(Report &report) {
  Random random = report.random("promote");
  for (int32_t planes : {1, 3, 90, 130}) {
    const int32_t capacity = 64, workspace = 140;
    const int64_t sizes[] = {2, 12, 32, 384, 1024};
    std::vector<DeviceArray<uint8_t>> device;
    std::vector<std::vector<uint8_t>> want;
    std::vector<bitmtp_kv_plane> records;
    const int32_t n = planes == 3 ? 133 : random.integer(1, 9), at = planes == 3 ? 0 : random.integer(0, capacity - n);
    std::vector<int32_t> rows(n);
    // 133 rows: more than fit in one launch, and more than the history here, so they wrap into the workspace's own first rows.
    for (int32_t &r : rows) r = planes == 3 ? 139 : random.integer(0, workspace - 1);
    for (int32_t p = 0; p < planes; ++p) {
      const int64_t bytes = sizes[random.integer(0, 4)];
      std::vector<uint8_t> content(static_cast<size_t>(bytes) * (capacity + workspace));
      for (uint8_t &b : content) b = static_cast<uint8_t>(random.bits());
      device.emplace_back(content);
      records.push_back({device.back().data(), bytes});
      for (int32_t r = 0; r < n; ++r) std::memcpy(content.data() + (at + r) * bytes, content.data() + (capacity + rows[r]) * bytes, static_cast<size_t>(bytes));
      want.push_back(std::move(content));
    }
    require(bitmtp_cuda_promote(records.data(), planes, capacity, rows.data(), n, at, nullptr), "promote");
    finish();
    bool same = true;
    for (int32_t p = 0; p < planes; ++p) same = same && device[p].read() == want[p];
    report.count("promote", same, std::to_string(planes) + " planes, " + std::to_string(n) + " rows");
  }
}

// Page-locked memory, filled with 0xFF, and what lies behind it.
struct HostArray {
  explicit HostArray(size_t words) : size(words) {
    require(cudaMallocHost(reinterpret_cast<void **>(&data), (words + kGuard) * sizeof(uint32_t)), "cudaMallocHost");
    std::fill(data, data + words + kGuard, 0xFFFFFFFFu);
  }
  HostArray(const HostArray &) = delete;
  HostArray &operator=(const HostArray &) = delete;
  ~HostArray() { cudaFreeHost(data); }
  bool whole() const {
    return std::all_of(data + size, data + size + kGuard, [](uint32_t word) { return word == 0xFFFFFFFFu; });
  }
  static constexpr size_t kGuard = 64;
  size_t size;
  uint32_t *data = nullptr;
};

// There and back, by the kernel and by the copy engine, and again: the host's new content has to be seen.
void exchange_cases(Report &report) {
  Random random = report.random("exchange");
  for (size_t words : {size_t{1}, size_t{3}, size_t{255}, size_t{256}, size_t{257}, size_t{1024}, size_t{16384}, size_t{16385}, size_t{300001}}) {
    HostArray there(words), back(words);
    const DeviceOutput<uint32_t> device(words);
    finish();  // its content
    const Graph graph(true, [&](cudaStream_t stream) {
      require(bitmtp_cuda_send(there.data, device.data(), static_cast<int64_t>(words) * 4, stream), "send");
      require(bitmtp_cuda_fetch(device.data(), back.data, static_cast<int64_t>(words) * 4, stream), "fetch");
    });
    for (int32_t turn = 0; turn < 3; ++turn) {
      for (size_t i = 0; i < words; ++i) there.data[i] = static_cast<uint32_t>(random.bits());
      graph.replay();
      graph.wait();
      bool intact = false;
      const std::vector<uint32_t> got = device.read(intact);
      const bool same = std::equal(got.begin(), got.end(), there.data) && std::equal(got.begin(), got.end(), back.data);
      report.count("exchange", same && intact && there.whole() && back.whole(), std::to_string(words) + " words, turn " + std::to_string(turn));
    }
  }
  HostArray host(4);
  const DeviceArray<uint32_t> device(4);
  report.count("exchange", bitmtp_cuda_send(host.data, device.data(), 6, nullptr) == cudaErrorInvalidValue, "six bytes are taken");
}

}  // namespace

void chain_cases(Report &report) {
  step_cases(report);
  stage_cases(report);
  promote_cases(report);
  exchange_cases(report);
}

}  // namespace sweep
