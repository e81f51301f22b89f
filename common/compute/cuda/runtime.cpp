// SPDX-License-Identifier: MIT
// Finds this machine's GPUs. Gives the one in use memory, streams, events and, by cuBLAS, products.
#include <cstring>

#include "compute/cuda/runtime.hpp"
#include "memory/throw_error.hpp"

namespace zero {
namespace {
using cuda::check_cuda;

cudaDeviceProp properties_of(int gpu) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, gpu));
  return properties;
}
}  // namespace

Gpus visible_gpus() {
  Gpus gpus;
  const cudaError_t code = cudaGetDeviceCount(&gpus.count);
  if (code == cudaSuccess && gpus.count > 0) {
    for (int number = 0; number < gpus.count; ++number) {
      const auto [a, b] = std::bit_cast<std::array<std::uint64_t, 2>>(properties_of(number).uuid);
      gpus.identities.push_back(mix(a ^ mix(b)));
    }
    return gpus;
  }
  cudaGetLastError();  // clears the error: later calls have not failed
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return {0, "no GPU: this machine has no driver for one", {}};
  }
  return {0, fmt::format("no GPU: {}", cudaGetErrorString(code)), {}};
}

std::unique_ptr<Device> make_gpu(int number, bool others) {
  return std::make_unique<cuda::Gpu>(number, others);
}
}  // namespace zero

namespace zero::cuda {
struct CudaEvent : DeviceEvent {
  CudaEvent(Gpu& gpu, cudaStream_t stream, unsigned flags) : DeviceEvent(gpu) {
    check_cuda(cudaEventCreateWithFlags(&event, flags));
    check_cuda(cudaEventRecord(event, stream));
  }
  ~CudaEvent() override { cudaEventDestroy(event); }
  CudaEvent(const CudaEvent&) = delete;

  bool passed() const override {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaErrorNotReady) return false;
    check_cuda(state);
    return true;
  }
  std::chrono::steady_clock::time_point time() const override;

  cudaEvent_t event = nullptr;
  std::shared_ptr<const BothClocks> since;  // time() counts from here; null: do not call time()
};

struct BothClocks {
  explicit BothClocks(Gpu& of) : gpu(of, nullptr, cudaEventDefault) {
    check_cuda(cudaStreamSynchronize(nullptr));
    took = std::chrono::steady_clock::now() - host;
    host += took / 2;
  }

  std::chrono::steady_clock::time_point host = std::chrono::steady_clock::now();
  CudaEvent gpu;
  std::chrono::steady_clock::duration took;  // `host` is wrong by at most took / 2
};
std::chrono::steady_clock::time_point CudaEvent::time() const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, since->gpu.event, event));
  return since->host + std::chrono::round<std::chrono::steady_clock::duration>(
                           std::chrono::duration<double, std::milli>(milliseconds));
}

namespace {
/// Throws Error (resources) with cuBLAS's own words when `code` is not CUBLAS_STATUS_SUCCESS.
void check_cublas(cublasStatus_t code,
                  std::source_location where = std::source_location::current()) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  throw_error(ExitCode::resources, "{}: cuBLAS error {}: {}", where.function_name(),
              static_cast<int>(code), blas().status_string(code));
}

/// Returns the bytes, at most 16, of which all addresses are multiples.
std::uint32_t alignment_of(std::initializer_list<const std::byte*> addresses) {
  std::uintptr_t bits = 16;
  for (const std::byte* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(bits & -bits);
}
}  // namespace

void check_cuda(cudaError_t code, std::source_location where) {
  if (code == cudaSuccess) return;
  throw_error(ExitCode::resources, "{}: CUDA error {} ({}): {}", where.function_name(),
              static_cast<int>(code), cudaGetErrorName(code), cudaGetErrorString(code));
}

Gpu::Gpu(int number, bool others) : Device(DeviceType::cuda, Place::device), number(number) {
  Gpu::bind_thread();
  int all = 0;
  check_cuda(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, number));
  if (others) multiprocessors = std::max(all - message_blocks, all / 2);
  constexpr cudaDeviceAttr ratio = cudaDevAttrSingleToDoublePrecisionPerfRatio;
  check_cuda(cudaDeviceGetAttribute(&fp64_costs, ratio, number));
  host_ = make_host_of(*this);
}

std::byte* Gpu::allocate(std::int64_t bytes, Memory memory_type) {
  ++allocations;
  const bool ordinary = memory_type == Memory::ordinary;
  void* memory = nullptr;
  const cudaError_t code = ordinary ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes);
  if (code == cudaErrorMemoryAllocation) {  // no memory is left; the device has not failed
    cudaGetLastError();  // clears the error: later calls have not failed
    return nullptr;
  }
  check_cuda(code);
  if (!ordinary) return static_cast<std::byte*>(std::memset(memory, 0, bytes));
  check_cuda(cudaMemset(memory, 0, bytes));
  check_cuda(cudaDeviceSynchronize());  // our streams do not wait for cudaMemset's
  return static_cast<std::byte*>(memory);
}

void Gpu::release(std::byte* memory, Memory memory_type) noexcept {
  if (memory_type == Memory::pinned) return void(cudaFreeHost(memory));
  cudaDeviceSynchronize();  // a stream may still use the memory
  cudaFree(memory);
}

void Gpu::copy(void* to, const void* from, std::int64_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  // From ordinary memory the call returns early, and streams of ours do not wait for the bytes.
  check_cuda(cudaDeviceSynchronize());
}

std::string Gpu::name() const { return properties_of(number).name; }

std::pair<std::size_t, std::size_t> Gpu::info() {
  std::pair<std::size_t, std::size_t> bytes;
  check_cuda(cudaMemGetInfo(&bytes.first, &bytes.second));
  return bytes;
}

std::shared_ptr<const BothClocks> Gpu::both_clocks() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!clocks_ || now - clocks_->host > std::chrono::seconds(10)) {
    clocks_ = nullptr;
    for (int reading = 0; reading < 8; ++reading) {  // keeps the quickest: least lost to other work
      auto clocks = std::make_shared<const BothClocks>(*this);
      if (!clocks_ || clocks->took < clocks_->took) clocks_ = std::move(clocks);
    }
  }
  return clocks_;
}

Runtime::Runtime(Device& gpu, bool urgent) : gpu_(static_cast<Gpu&>(gpu)) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  check_cuda(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least));
}

Runtime::~Runtime() {
  cudaStreamSynchronize(stream_);
  if (blas_) blas().destroy(blas_);
  cudaStreamDestroy(stream_);
}

DeviceEventPtr Runtime::record() {
  return idle_ ? nullptr : std::make_shared<CudaEvent>(gpu_, stream_, cudaEventDisableTiming);
}

DeviceEventPtr Runtime::record_time(const DeviceEventPtr& begin) {
  const auto since = begin ? static_cast<const CudaEvent&>(*begin).since : gpu_.both_clocks();
  // Recording is work: hence stream(), not stream_.
  const auto event = std::make_shared<CudaEvent>(gpu_, stream(), cudaEventDefault);
  event->since = since;
  return event;
}

void Runtime::wait(const DeviceEventPtr& event) {
  if (!event) return;
  check_cuda(cudaStreamWaitEvent(stream(), static_cast<const CudaEvent&>(*event).event, 0));
}

void Runtime::reserve_products(std::int64_t room) {
  blas_workspace_.emplace(gpu_, Kind::workspace, blas_workspace_bytes, true);
  product_room_.emplace(gpu_, Kind::workspace, room, true);
}

void Runtime::multiply(std::int64_t count, std::int64_t rows, std::int64_t inner,
                       std::int64_t columns, const ConstMatrices& a, const ConstMatrices& b,
                       const Matrices& products, const std::byte* bias, bool relu) {
  expect(product_room_.has_value(), "reserve_products comes before a product");
  if (!blas_) check_cublas(blas().create(&blas_));
  const View product = products.first.elements;
  if (alignment_of({bias}) < 16) {  // cuBLAS may read 16 bytes of it at once
    copy_bytes(product_room_->data(), bias, columns * bytes_of(product.dtype));
    bias = product_room_->data();
  }
  constexpr cudaDataType types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
  const auto dtype = static_cast<int>(product.dtype);
  // cuBLAS takes a matrix that lies row by row for its transpose, hence product^T = b^T a^T.
  const auto lay_out = [&](std::int64_t height, std::int64_t width, const ConstMatrices& of) {
    cublasLtMatrixLayoutOpaque_t layout;
    check_cublas(blas().start_layout(&layout, sizeof layout, types[dtype], height, width,
                                     of.first.row_stride));
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      check_cublas(blas().lay_out(&layout, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, of.batch_stride);
    return layout;
  };
  const bool turn_a = a.first.transposed, turn_b = b.first.transposed;
  auto left = turn_b ? lay_out(inner, columns, b) : lay_out(columns, inner, b);
  auto right = turn_a ? lay_out(rows, inner, a) : lay_out(inner, rows, a);
  auto result = lay_out(columns, rows, products);
  cublasLtMatmulDescOpaque_t told;
  const auto tell = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check_cublas(blas().describe(&told, attribute, &value, sizeof value));
  };
  int epilogue = (bias ? CUBLASLT_EPILOGUE_BIAS : 0) | (relu ? CUBLASLT_EPILOGUE_RELU : 0);
  if (epilogue == 0) epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  check_cublas(blas().start_description(&told, sizeof told, CUBLAS_COMPUTE_32F,  // without TF32
                                        CUDA_R_32F));
  tell(CUBLASLT_MATMUL_DESC_TRANSA, turn_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  tell(CUBLASLT_MATMUL_DESC_TRANSB, turn_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  tell(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  // For its choice cuBLAS sees address 16, so that no bias is aligned better than another.
  if (bias) tell(CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::uintptr_t{16});

  const std::byte *at_left = b.first.elements.data, *at_right = a.first.elements.data;
  // If the first and the second matrix are aligned, all are, because their distances are equal.
  const auto second = [&](const ConstMatrices& of) {
    return of.first.elements.data + of.batch_stride * bytes_of(product.dtype);
  };
  const std::uint32_t alignment =
      alignment_of({at_left, at_right, product.data, second(a), second(b), second(products)});
  const auto [algorithm, is_new] =
      algorithms_.try_emplace({count, turn_a, turn_b, rows, inner, columns, a.first.row_stride,
                               b.first.row_stride, products.first.row_stride, a.batch_stride,
                               b.batch_stride, products.batch_stride, dtype, epilogue, alignment});
  if (is_new) {
    const bool fp32 = product.dtype == Dtype::fp32;
    // In fp32 cuBLAS chooses for all multiprocessors, as in 01: fewer may change the order of sums.
    tell(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, fp32 ? 0 : gpu_.multiprocessors);
    cublasLtMatmulPreferenceOpaque_t wish;
    check_cublas(blas().start_preference(&wish, sizeof wish));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_cublas(blas().prefer(&wish, attribute, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{blas_workspace_bytes});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    // Sums may be formed in parts, but with 16-bit dtypes the parts stay fp32 until they are added.
    const std::uint32_t any = CUBLASLT_REDUCTION_SCHEME_MASK;
    const std::uint32_t in_fp32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, fp32 ? any : in_fp32);
    cublasLtMatmulHeuristicResult_t chosen{};
    int count = 0;
    check_cublas(
        blas().choose(blas_, &told, &left, &right, &result, &result, &wish, 1, &chosen, &count));
    check_cublas(count == 1 ? chosen.state : CUBLAS_STATUS_NOT_SUPPORTED);
    algorithm->second = chosen.algo;
  }
  tell(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, gpu_.multiprocessors);
  if (bias) tell(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1, zero = 0;
  check_cublas(blas().multiply(blas_, &told, &one, at_left, &left, at_right, &right, &zero,
                               product.data, &result, product.data, &result, &algorithm->second,
                               blas_workspace_->data(), blas_workspace_->bytes(), stream()));
}
}  // namespace zero::cuda
