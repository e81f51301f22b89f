// SPDX-License-Identifier: MIT
// The simulated GPU's matrix products. The CPU computes them, on fp32 copies.
#include <algorithm>
#include <cstring>

#include "compute/cpu/matmul.hpp"
#include "compute/cuda/runtime.hpp"

struct cublasLtContext {
  std::int64_t rows = 0, columns = 0, inner = 0;  // of the product chosen for last
};

namespace {
/// A matrix in memory. Dies unless its address is a multiple of `alignment` bytes.
struct Matrix : cublasLtMatrixLayoutOpaque_t {
  Matrix(const char* name, const void* data, const cublasLtMatrixLayoutOpaque_t& layout,
         std::uint64_t alignment)
      : cublasLtMatrixLayoutOpaque_t(layout),
        data(const_cast<void*>(data)),
        dtype(type == CUDA_R_32F   ? zero::Dtype::fp32
              : type == CUDA_R_16F ? zero::Dtype::fp16
                                   : zero::Dtype::bf16) {
    if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
      simulated::die("cublasLtMatmul: %s at %p, no multiple of %zu", name, data, alignment);
    }
    const std::int64_t elements = (columns - 1) * leading + rows;
    simulated::require_device_memory(data, elements * zero::bytes_of(dtype), name);
  }

  /// The part from row or column `first` on, for the CPU, which takes each column for a row.
  zero::Matrix from(std::int64_t first, bool in_columns, bool turned) const {
    const std::int64_t skipped = first * (in_columns ? leading : 1);
    const std::int64_t size = (columns - 1) * leading + rows - skipped;
    auto* const begin = static_cast<std::byte*>(data) + skipped * zero::bytes_of(dtype);
    return {{begin, size, size, dtype}, leading, turned};
  }

  void* data;
  zero::Dtype dtype;
};

constexpr std::size_t code_bytes = std::size_t{448} << 20;
void* code = nullptr;  // cuBLAS's kernels, which the first product of a process loads for good

using Product = cublasLtMatmulDescOpaque_t;
bool turns(const Product& product, cublasLtMatmulDescAttributes_t operand) {
  return product.data[operand] == CUBLAS_OP_T;
}
const void* bias_of(const Product& product) {
  const auto bias = reinterpret_cast<const void*>(product.data[CUBLASLT_MATMUL_DESC_BIAS_POINTER]);
  const bool has_bias = product.data[CUBLASLT_MATMUL_DESC_EPILOGUE] & CUBLASLT_EPILOGUE_BIAS;
  if (has_bias != (bias != nullptr)) simulated::die("cublasLt: an epilogue without its attribute");
  return bias;
}
/// Returns the address's alignment: a power of 2, in bytes, at most 256.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return bits & -bits;
}

// Below, Blas converts these generic functions to pointers of the types that cublasLt.h declares.
constexpr auto start_description = [](auto product, auto, auto, auto) {
  *product = {};
  product->data[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
  return CUBLAS_STATUS_SUCCESS;
};

constexpr auto start_layout = [](auto layout, auto, auto type, auto rows, auto columns,
                                 std::int64_t leading) {
  *layout = {type, std::int64_t(rows), std::int64_t(columns), leading};
  if (layout->rows < 1 || layout->columns < 1 || leading < layout->rows) {
    simulated::die("cublasLt: %ld x %ld elements, %ld apart", rows, columns, leading);
  }
  return CUBLAS_STATUS_SUCCESS;
};

constexpr auto lay_out = [](auto layout, auto attribute, auto value, auto size) {
  const bool counts = attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (size != (counts ? 4 : 8)) simulated::die("attribute %d: size", attribute);
  std::memcpy(counts ? &layout->count : &layout->apart, value, size);
  return CUBLAS_STATUS_SUCCESS;
};

constexpr auto start_preference = [](auto preference, auto) {
  *preference = {};
  preference->data[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::fill_n(preference->data + CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4, 256);
  return CUBLAS_STATUS_SUCCESS;
};

template <auto of_8_bytes>
constexpr auto set = [](auto of, auto attribute, auto value, auto size) {
  if (size != (attribute == of_8_bytes ? 8 : 4)) simulated::die("attribute %d: size", attribute);
  std::memcpy(&of->data[attribute], value, size);
  return CUBLAS_STATUS_SUCCESS;
};

constexpr auto choose = [](auto handle, auto product, auto a, auto b, auto c, auto d,
                           auto preference, int, auto results, auto count) {
  const bool turn_a = turns(*product, CUBLASLT_MATMUL_DESC_TRANSA);
  const bool turn_b = turns(*product, CUBLASLT_MATMUL_DESC_TRANSB);
  if ((turn_a ? a->columns : a->rows) != d->rows || (turn_b ? b->rows : b->columns) != d->columns ||
      (turn_a ? a->rows : a->columns) != (turn_b ? b->columns : b->rows) || !(*c == *d) ||
      a->type != b->type || a->type != d->type || a->count != d->count || b->count != d->count) {
    simulated::die("cublasLtMatmulAlgoGetHeuristic: these matrices make no product");
  }
  const auto schemes = preference->data[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK];
  if (d->type != CUDA_R_32F && schemes != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
    simulated::die("cublasLtMatmulAlgoGetHeuristic: parts of a sum may be rounded to 16 bit");
  }
  bias_of(*product);
  const std::int64_t inner = turn_a ? a->rows : a->columns;
  if (d->rows == handle->rows && inner == handle->inner && 16 * d->columns < handle->columns) {
    // A last part of a gradient that has so few columns would still read all inputs.
    simulated::die("cublasLt: %ld columns after %ld are a sliver", d->columns, handle->columns);
  }
  *handle = {d->rows, d->columns, inner};
  const bool some = product->data[CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET] > 0;
  // Small products in halves: kernels_test.cpp sees if one of two gradients is not made in parts.
  const bool in_halves = some || d->rows * d->columns < 500;
  results[0] = {{*product, {*a, *b, *c, *d}, *preference, in_halves}, {}};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
};

constexpr auto multiply = [](auto, auto product, auto alpha, auto A, auto layout_a, auto B,
                             auto layout_b, auto beta, auto C, auto layout_c, auto D, auto layout_d,
                             auto algorithm, auto workspace, auto bytes, auto stream) {
  const auto& [chosen_for, layouts, preference, in_halves] = *algorithm;
  const void* const bias = bias_of(*product);
  if (!code && cudaMalloc(&code, code_bytes)) return CUBLAS_STATUS_ALLOC_FAILED;
  Product same = *product;  // but for two attributes, which may differ from `chosen_for`
  for (const auto attribute :
       {CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET}) {
    same.data[attribute] = chosen_for.data[attribute];
  }
  if (!std::ranges::equal(same.data, chosen_for.data) || !(*layout_a == layouts[0]) ||
      !(*layout_b == layouts[1]) || !(*layout_c == layouts[2]) || !(*layout_d == layouts[3])) {
    simulated::die("cublasLtMatmul: the algorithm was chosen for another product");
  }
  if (bytes == 0 || bytes < preference.data[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES] ||
      reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
    simulated::die("cublasLtMatmul: a workspace of %zu bytes at %p", bytes, workspace);
  }
  simulated::require_device_memory(workspace, bytes, "the workspace");
  const int target = static_cast<int>(product->data[CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET]);
  const int ours = target > 0 ? target : simulated::multiprocessors;
  if (ours + simulated::message_blocks > simulated::multiprocessors) {
    simulated::die(
        "cublasLtMatmul: %d of %d multiprocessors and %d blocks of NCCL's: it would wait", ours,
        simulated::multiprocessors, simulated::message_blocks.load());
  }
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0 || C != D) {
    simulated::die("cublasLtMatmul: more than a product is not simulated");
  }
  const std::uint64_t* aligned = preference.data + CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  const std::int64_t bytes_each = layout_d->type == CUDA_R_32F ? 4 : 2;
  const auto number = [&](std::int64_t i, const void* first, const auto* layout) {
    return static_cast<const std::byte*>(first) + i * layout->apart * bytes_each;
  };
  for (std::int64_t i = 0; i < layout_d->count; ++i) {
    const Matrix a("A", number(i, A, layout_a), layouts[0], aligned[0]);
    const Matrix b("B", number(i, B, layout_b), layouts[1], aligned[1]);
    const Matrix d("D", number(i, D, layout_d), layouts[3], std::max(aligned[2], aligned[3]));
    std::vector<Matrix> biases;  // one, or none
    if (bias) {
      if (alignment_of(bias) < 16) simulated::die("cublasLtMatmul: the bias at %p", bias);
      biases.emplace_back("the bias", bias, cublasLtMatrixLayoutOpaque_t{d.type, d.rows, 1, d.rows},
                          alignment_of(bias_of(chosen_for)));
    }
    const bool relu = product->data[CUBLASLT_MATMUL_DESC_EPILOGUE] & CUBLASLT_EPILOGUE_RELU;
    const bool turn_a = turns(*product, CUBLASLT_MATMUL_DESC_TRANSA);
    const bool turn_b = turns(*product, CUBLASLT_MATMUL_DESC_TRANSB);
    const std::int64_t inner = turn_a ? a.rows : a.columns, half = in_halves ? inner / 2 : 0;
    simulated::enqueue(stream, [=] {
      // Read row by row, a matrix that lies column by column is transposed: product^T = b^T a^T.
      std::vector<float> sums(d.rows * d.columns);
      for (const auto& [first, end] : {std::pair(half, inner), std::pair(std::int64_t{0}, half)}) {
        if (first == end) continue;
        zero::matmul(b.from(first, turn_b, turn_b), a.from(first, !turn_a, turn_a), d.columns,
                     end - first, d.rows, [&](const zero::RowPart& part) {
                       float* const to = &sums[part.row * d.rows + part.column];
                       std::transform(part.values, part.values + part.count, to, to, std::plus());
                     });
      }
      zero::with_type(d.dtype, [&]<class T>(T) {
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const std::int64_t row = i % d.rows, column = i / d.rows;
          float value = sums[i];
          for (const Matrix& added : biases) value += zero::widen(static_cast<T*>(added.data)[row]);
          // NVIDIA does not say what becomes of NaN; here 0.
          if (relu) value = value > 0 ? value : 0;
          static_cast<T*>(d.data)[column * d.leading + row] = zero::narrow<T>(value);
        }
      });
    });
  }
  return CUBLAS_STATUS_SUCCESS;
};
}  // namespace

const zero::cuda::Blas& zero::cuda::blas() {
  static const Blas simulated{
      .create = [](auto handle) { return *handle = new cublasLtContext, CUBLAS_STATUS_SUCCESS; },
      .destroy = [](auto handle) { return delete handle, CUBLAS_STATUS_SUCCESS; },
      .start_description = start_description,
      .start_layout = start_layout,
      .start_preference = start_preference,
      .describe = set<CUBLASLT_MATMUL_DESC_BIAS_POINTER>,
      .lay_out = lay_out,
      .prefer = set<CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES>,
      .choose = choose,
      .multiply = multiply,
      .status_string = [](auto) { return "an error of the simulated cublasLt"; },
  };
  return simulated;
}
